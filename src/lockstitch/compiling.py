"""Code of ours inside functions that `torch.compile` has compiled: it is left as it is.

Calls, contexts and reductions talk to other processes, so there is nothing for a compiler in them.
Torch's compiler has a list of folders that it passes over; when it is imported, which may be much
later and takes seconds, this package is added. A compiled function is then cut at each call of
ours, or torch says that it cannot be (`fullgraph=True`). What we call in turn is compiled as ever.

`devices.guard` is told as well, before anything is compiled.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockstitch.torch_internals.names import COMPILER_RULES, OPAQUE, REASON_OF_OPAQUE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


F = TypeVar("F", bound="Callable[..., Any]")

_REASON: Final = (
    "it talks to other processes, so that a graph of torch cannot contain it; leave fullgraph=True "
    "away, and what lies before and behind it is compiled"
)


def opaque(function: F) -> F:
    """A decorator: says to compilers why they cannot look into `function`, where it matters."""
    setattr(function, OPAQUE, True)
    setattr(function, REASON_OF_OPAQUE, f"{function.__module__}.{function.__name__}: {_REASON}")
    return function


def keep_from_compilers(package: str) -> None:
    """From now on the package is passed over."""
    rules = sys.modules.get(COMPILER_RULES)
    if rules is None:
        sys.meta_path.insert(0, _Watch(package))
    else:
        _tell(rules, package)


class _Watch:
    """Sees the module being imported; it finds nothing else, and is gone afterwards. (A finder by
    what it does: the class that one would derive it from takes longer to import than all of this
    package that a launcher needs.)"""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - names and order are the interpreter's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != COMPILER_RULES or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                _tell(module, self._package)

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec


def _tell(rules: ModuleType, package: str) -> None:
    add = getattr(rules, "add", None)  # a torch without it compiles what it can
    if add is not None:
        add(package)
    import_module("lockstitch.devices.guard").keep_guard()  # starts a thread, which few need
