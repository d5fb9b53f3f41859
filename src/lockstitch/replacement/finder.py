"""An import hook that finds our module where somebody imports one that is replaced.

A module under a replaced name is our module itself, not a copy of it: whoever imports it, or looks
for it in `sys.modules`, gets the same object as by our own name. Where torch has still to be
imported the hook waits for that, since ours stand on torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack
    from types import ModuleType

_WITHOUT_TORCH: Final = frozenset(
    " __main__ pytest_plugin replacement launch launcher_link trust"
    " errors ids clock folders records fences compiling imports interrupts endings inquiry"
    " versions".split(" ")
)
"""What of ours is imported without torch, with all that is in it."""

_ALONE_WITHOUT_TORCH: Final = frozenset({"torch_internals", "torch_internals.names"})
"""Likewise, but not with what else is in it."""


@dataclass
class ActiveReplacement:
    """One library that is replaced at present, for as long as anybody wants it so."""

    changes: ExitStack
    """Undoes the changes."""

    users: int = 0
    """How many have asked for it and are not done."""


class AliasFinder(MetaPathFinder):
    """Finds modules under the names of others."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}
        """Modules, with all below them, and what stands in for them."""

        self.active: dict[str, ActiveReplacement] = {}
        """What is replaced, in the order in which it was asked for."""

        self.variable_before: str | None = None
        """What LOCKSTITCH_REPLACE said before anything was replaced."""

        self.after_torch: list[Callable[[], None]] = []
        """What is to be done once torch is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds our module for one that is replaced, and torch's own with a loader that tells when
        torch is there."""
        if self.after_torch:
            if fullname == "torch":
                return self._torch(fullname, path, target)
            if _stands_on_torch(fullname):
                return self._ours(fullname)
        for name, ours in self.aliases.items():
            if fullname == name or fullname.startswith(f"{name}."):
                wanted = ours + fullname[len(name) :]
                # Programs ask for a part without importing it, to know whether it is there.
                if wanted != ours and importlib.util.find_spec(wanted) is None:
                    raise _missing(fullname, name, ours)
                loader = _AliasLoader(wanted)
                return ModuleSpec(fullname, loader, origin=ours, is_package=True)
        return None

    def _torch(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._torch_is_here)
        return spec

    def _ours(self, fullname: str) -> ModuleSpec | None:
        """Imports torch before one of our modules, and with it whatever replaces its parts. These
        would else be needed whole while they are being imported, and themselves import torch."""
        importlib.import_module("torch")
        module = sys.modules.get(fullname)
        return None if module is None else _PresentLoader(module).spec

    def _torch_is_here(self) -> None:
        waiting, self.after_torch = self.after_torch, []
        for act in waiting:
            act()


def _stands_on_torch(fullname: str) -> bool:
    package, _, rest = fullname.partition(".")
    return (
        package == "lockstitch"
        and rest.partition(".")[0] not in _WITHOUT_TORCH
        and rest not in _ALONE_WITHOUT_TORCH
    )


class _PresentLoader(Loader):
    """The loader of a module that was imported between the question for it and the answer. The
    import system would take the spec that it finds in the module, and load it once more; so the
    module has our spec until then."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._before = module.__spec__
        self.spec = module.__spec__ = ModuleSpec(module.__name__, self)

    def exec_module(self, module: ModuleType) -> None:
        self._module.__spec__ = self._before
        sys.modules[module.__name__] = self._module


class _AliasLoader(Loader):
    """The loader of a module under a replaced name: it gives out our module."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def exec_module(self, module: ModuleType) -> None:
        # What the import system finds in the table afterwards is what it hands out.
        sys.modules[module.__name__] = importlib.import_module(self._ours)


def _missing(fullname: str, alias: str, ours: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"No module named {fullname!r}: {ours} stands in for {alias} here "
        f"(LOCKSTITCH_REPLACE, lockstitch run --replace, lockstitch.replace), "
        "and has no such module",
        name=fullname,
    )


class _NotifyingLoader(Loader):
    """A loader that calls `tell` when another one has executed its module."""

    def __init__(self, loader: Loader, tell: Callable[[], None]) -> None:
        self._loader = loader
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._tell()
