"""Putting ours in the place of others, and taking it away again.

Every change is noted with what was there before, and undone in the reverse order. The state of it
all is in the interpreter's own tables: `sys.modules`, `sys.meta_path`, the modules that were
changed, and the variable of the environment by which child processes do the same.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from lockstitch.replacement.finder import ActiveReplacement, AliasFinder
from lockstitch.replacement.stale_imports import warn_of_stale_imports
from lockstitch.replacement.table import INCUMBENTS, VARIABLE, parse_names

if TYPE_CHECKING:
    from types import ModuleType

    from lockstitch.replacement.table import Attributes, Incumbent

_NOTHING: Final = object()

_LOCK: Final = threading.RLock()
"""Held by the thread that changes the interpreter's tables."""


def replace(*names: str) -> Replacement:
    """Puts Lockstitch in the place of other libraries, in this process and in its children.

    `names` are of `torch-rpc` (`torch.distributed.rpc`, `.autograd`, `DistributedOptimizer`,
    `RemoteModule`), `horovod` (`horovod.torch` and what belongs to it) and `data-parallel`
    (`torch.nn.DataParallel` and the functions that it is made of); none: all three. It lasts until
    the end of the program, or of the `with` block that it heads, or until `undo()`: where several
    have asked for the same, until the last of them is done, in whatever order.

    Warns (`RuntimeWarning`) of names that modules have imported before and keep.
    Raises `ValueError` for a name that it does not know.
    """
    return Replacement(parse_names(",".join(names)) if names else tuple(INCUMBENTS))


def active() -> tuple[str, ...]:
    """Returns what is replaced in this process, by the names that `replace` takes."""
    finder = _find_finder()
    return () if finder is None else tuple(finder.active)


class Replacement:
    """What has been replaced, until `undo`, or until the end of the `with` block."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        with _LOCK, ExitStack() as asked:
            finder = _find_finder() or _install_finder()
            asked.callback(_settle, finder)
            for name in names:
                if name not in finder.active:
                    with ExitStack() as changes:
                        finder.active[name] = ActiveReplacement(changes)
                        changes.callback(finder.active.pop, name)
                        _begin(INCUMBENTS[name], finder, changes)
                        finder.active[name].changes = changes.pop_all()
                replaced = finder.active[name]
                replaced.users += 1
                asked.callback(_release, replaced)
            _settle(finder)
            self._asked = asked.pop_all()

    def __repr__(self) -> str:
        return f"Replacement({', '.join(self.names)})"

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *_error: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Puts back what was there before, unless somebody else has asked for the same and is not
        done. Twice is harmless."""
        with _LOCK:
            self._asked.close()


def _find_finder() -> AliasFinder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, AliasFinder)), None)


def _install_finder() -> AliasFinder:
    finder = AliasFinder()
    finder.variable_before = os.environ.get(VARIABLE)
    sys.meta_path.insert(0, finder)
    return finder


def _release(replaced: ActiveReplacement) -> None:
    replaced.users -= 1
    if not replaced.users:
        replaced.changes.close()


def _settle(finder: AliasFinder) -> None:
    """Tells the children what is replaced now; the finder goes when nothing is."""
    value = ",".join(finder.active) or finder.variable_before
    if value is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = value
    if not finder.active and finder in sys.meta_path:
        sys.meta_path.remove(finder)


def _begin(incumbent: Incumbent, finder: AliasFinder, changes: ExitStack) -> None:
    """Replaces a library now, or as soon as torch is there."""
    if not incumbent.needs_torch or "torch" in sys.modules:
        _swap(incumbent, finder, changes)
        return
    # What is changed later is undone at the place in the order where it was asked for.
    later = changes.enter_context(ExitStack())
    act = partial(_swap, incumbent, finder, later)
    finder.after_torch.append(act)

    def forget() -> None:
        if act in finder.after_torch:
            finder.after_torch.remove(act)

    changes.callback(forget)


def _swap(incumbent: Incumbent, finder: AliasFinder, changes: ExitStack) -> None:
    changes.callback(_give_back, [them for them in incumbent.attributes if not them.is_here()])
    originals: dict[int, str] = {}
    for name, ours in incumbent.modules:
        for key in _within(name):
            module = sys.modules.pop(key)
            originals |= _own(module)
            changes.callback(sys.modules.__setitem__, key, module)
        finder.aliases[name] = ours
        changes.callback(_forget_alias, finder, name)
    for name, _ in incumbent.modules:
        package, _, leaf = name.rpartition(".")
        if package in sys.modules:
            # Programs write `torch.distributed.rpc` without having imported it. (An import sets
            # that itself, so what was there is noted first.)
            _set(sys.modules[package], leaf, None, changes)
            setattr(sys.modules[package], leaf, importlib.import_module(name))
    for them in incumbent.attributes:
        originals |= _set_attributes(them, changes)
    warn_of_stale_imports(incumbent.name, originals)


def _within(name: str) -> list[str]:
    """Returns the modules that are imported under a name, and below it."""
    return [key for key in sys.modules if key == name or key.startswith(f"{name}.")]


def _own(module: ModuleType) -> dict[int, str]:
    """Returns a module's name, and those of the functions and classes that it has defined, by
    identity."""
    name = module.__name__
    own = {id(module): name}
    for attribute, value in list(vars(module).items()):
        if callable(value) and getattr(value, "__module__", None) == name:
            own[id(value)] = f"{name}.{attribute}"
    return own


def _set_attributes(them: Attributes, changes: ExitStack) -> dict[int, str]:
    """Replaces attributes; returns the names of what was there before, by identity."""
    originals: dict[int, str] = {}
    if them.is_here():
        place = sys.modules[them.place]
        ours = importlib.import_module(them.ours)
        for name in them.names:
            before = vars(place).get(name)
            if before is not None and hasattr(ours, name):
                if callable(before):
                    originals[id(before)] = f"{them.place}.{name}"
                _set(place, name, getattr(ours, name), changes)
    return originals


def _set(module: ModuleType, name: str, value: object, changes: ExitStack) -> None:
    before = vars(module).get(name, _NOTHING)
    if before is _NOTHING:
        changes.callback(vars(module).pop, name, None)
    else:
        changes.callback(setattr, module, name, before)
    setattr(module, name, value)


def _forget_alias(finder: AliasFinder, name: str) -> None:
    del finder.aliases[name]
    for key in _within(name):
        del sys.modules[key]


def _give_back(attributes: list[Attributes]) -> None:
    """Gives the originals to modules that were imported while ours stood there, and have taken
    ours."""
    for them in attributes:
        if them.is_here() and them.origin:
            origin = importlib.import_module(them.origin)
            for name in them.names:
                setattr(sys.modules[them.place], name, getattr(origin, name))
