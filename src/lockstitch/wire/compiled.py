"""Functions that `torch.compile` has compiled: they cross as what they were compiled of, and how;
whoever receives one compiles it once.

(One that a module holds by its own name, `f = torch.compile(f)` say, crosses by that name.)
"""

from __future__ import annotations

import functools
import pickle
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from lockstitch.torch_internals.names import COMPILED_OF

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_COMPILED: Final = 256


def is_compiled(value: object) -> bool:
    """Returns whether `torch.compile` has made this function."""
    return type(value) is FunctionType and hasattr(value, COMPILED_OF)


def parts_of(function: Callable[..., Any]) -> tuple[Callable[..., Any], bytes]:
    """What `compile_here` makes such a function of."""
    return getattr(function, COMPILED_OF), _compiler_of(function)


@functools.lru_cache(_MOST_COMPILED)
def _compiler_of(function: Callable[..., Any]) -> bytes:
    # It takes seconds to import, but not where there is a compiled function.
    from lockstitch.torch_internals.compiling import compiler_of  # noqa: PLC0415

    compiler: bytes = cloudpickle.dumps(compiler_of(function))
    return compiler


@functools.lru_cache(_MOST_COMPILED)
def compile_here(function: Callable[..., Any], compiler: bytes) -> Callable[..., Any]:
    """The function, compiled in this process as it was where it came from."""
    compiled: Callable[..., Any] = pickle.loads(compiler)(function)
    return compiled
