"""Optimizers of torch's, made and stepped without the compiler that nobody has asked for.

torch keeps its compiler out of some methods of `torch.optim.Optimizer`, and tells it where the mode
of gradients changes in a step. For that it imports `torch._dynamo` when the first optimizer of a
process is made: 800 modules, a second or two, and some 70 MB, on each owner of parameters. Nothing
is being compiled in a process that has not imported it, so there the same functions are called
without those wrappers. Their results are the same.

Where the compiler is there already, and where a class is not torch's own or its methods are wrapped
otherwise than is known here, the optimizer is made and stepped as any other.
"""

from __future__ import annotations

import sys
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as theirs

from lockstitch.torch_internals.names import COMPILER, GRADIENT_MODE, NOT_COMPILED

if TYPE_CHECKING:
    from collections.abc import Callable


def _code_of_wrapper(wrap: Any) -> Any:
    """All wrappers that `wrap` makes have the same code; None where torch has no such function."""
    return None if wrap is None else getattr(wrap(lambda: None), "__code__", None)


_HOOKED: Final = _code_of_wrapper(getattr(Optimizer, "profile_hook_step", None))
"""Calls the hooks of steps, within a range for profilers."""
_IN_MODE: Final = _code_of_wrapper(getattr(theirs, GRADIENT_MODE, None))
"""Sets the mode of gradients, and imports the compiler."""
_NOT_COMPILED: Final = _code_of_wrapper(getattr(torch, NOT_COMPILED, None))
"""Keeps the compiler out, and imports it."""


def make(
    optimizer_class: Callable[..., Optimizer], parameters: Any, *args: Any, **kwargs: Any
) -> Optimizer:
    """Returns `optimizer_class(parameters, *args, **kwargs)`, made without importing the compiler
    where that is possible."""
    if not isinstance(optimizer_class, type) or not _is_plain(optimizer_class):
        return optimizer_class(parameters, *args, **kwargs)
    optimizer: Any = object.__new__(optimizer_class)
    # The constructor calls it by this name.
    optimizer.add_param_group = method(optimizer, "add_param_group")
    optimizer.__init__(parameters, *args, **kwargs)
    del optimizer.add_param_group
    return optimizer  # type: ignore[no-any-return]


def step(optimizer: Optimizer) -> None:
    """Steps the optimizer, without importing the compiler where that is possible."""
    hooked = type(optimizer).step
    in_mode = _unwrapped(hooked, _HOOKED)
    bare = _unwrapped(in_mode, _IN_MODE)
    if "step" in vars(optimizer) or not _is_plain(type(optimizer)) or bare is None:
        optimizer.step()
        return

    def step_in_mode(self: Optimizer) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return bare(self)

    Optimizer.profile_hook_step(step_in_mode)(optimizer)


def method(optimizer: Optimizer, name: str) -> Callable[..., Any]:
    """Returns the optimizer's method of that name, without the wrapper that imports the
    compiler."""
    if name not in vars(optimizer) and _is_plain(type(optimizer)):
        bare = _unwrapped(getattr(type(optimizer), name), _NOT_COMPILED)
        if bare is not None:
            return MethodType(bare, optimizer)
    return getattr(optimizer, name)  # type: ignore[no-any-return]


def _is_plain(optimizer_class: type) -> bool:
    """Returns whether a class is one of torch's own, in a process without the compiler."""
    return (
        COMPILER not in sys.modules
        and issubclass(optimizer_class, Optimizer)
        and optimizer_class.__module__.startswith("torch.optim.")
    )


def _unwrapped(function: Any, code: Any) -> Any:
    """Returns what `function` wraps, where it is a wrapper of that code; else None."""
    is_such = code is not None and getattr(function, "__code__", None) is code
    return getattr(function, "__wrapped__", None) if is_such else None
