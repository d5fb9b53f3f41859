"""One import at a time, of all those that reading messages begins.

What a peer sends names functions and classes, and a module that holds one may still have to be
imported. Python gives each module a lock of its own while it is imported. Where modules import
each other in a circle, two threads that begin at different ones hold what the other one wants, and
one of them gets an error. So the threads of this library take turns.

A module may make calls while it is imported, and what is called may call back here and need an
import too. Hence nobody keeps the turn while it waits for others (`suspend`); and what a module
that waits so has defined already may be used, since nobody can wait for the rest of it.

A thread of the program may import at the same time. Then an import of ours that met it in a circle
is begun again: Python has taken back what there was of it. So is one that misses the package which
it was about: if the program's thread is the one that Python turns away, it takes that package back.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import sys
import threading
from importlib import _bootstrap
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockstitch.interrupts import take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_MET_IN_A_CIRCLE: Final[type[RuntimeError]] = _bootstrap._DeadlockError  # type: ignore[attr-defined]
_ATTEMPTS: Final = 10
_PATIENCE_SECONDS: Final = 10.0
"""After that one goes on without the turn: whoever has it may wait for us where nobody sees it."""


class _Mine(threading.local):
    """What a thread knows of its own imports; `held` is not empty while it has the turn."""

    depth = 0

    def __init__(self) -> None:
        self.held: list[bool] = []


class Imports:
    """See the module. There is one for the process, as there is one `sys.modules`."""

    def __init__(self) -> None:
        self.under_way = 0
        """How many threads import now, or want to; to be looked at before `suspend` is called."""
        self._suspended = 0
        self._turn = threading.Lock()
        self._counting = threading.Lock()
        self._mine = _Mine()

    def __repr__(self) -> str:
        return f"<Imports · {self.under_way} under way, {self._suspended} of them suspended>"

    def module(self, name: str) -> Any:
        """The module of that name, imported if need be. Raises what `importlib` does."""
        if is_complete(name):
            return sys.modules[name]
        return self._in_turn(name, lambda: importlib.import_module(name))

    def find(self, module: str, name: str, find: Callable[[str, str], T]) -> T:
        """What `find(module, name)` finds, which may import the module."""
        if is_complete(module):
            if name == "subimport" and module.startswith("cloudpickle"):
                return self.module  # type: ignore[return-value]
            return find(module, name)
        if self._suspended:
            found: Any = sys.modules.get(module)
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                return found  # type: ignore[no-any-return]
        return self._in_turn(module, lambda: find(module, name))

    def _in_turn(self, module: str, find: Callable[[], T]) -> T:
        with self._taking_turns():
            for _ in range(_ATTEMPTS):
                try:
                    return find()
                except _MET_IN_A_CIRCLE:
                    continue
                except KeyError as error:
                    # In the other thread's import, which failed, Python has taken back a package
                    # just before it was looked up in `sys.modules` as the parent of this one.
                    if not any(f"{module}.".startswith(f"{missing}.") for missing in error.args):
                        raise
            return find()

    @contextlib.contextmanager
    def _taking_turns(self) -> Iterator[None]:
        mine = self._mine
        mine.depth += 1
        self._count(under_way=1)
        try:
            if mine.depth == 1:
                take(self._turn, mine.held, _PATIENCE_SECONDS)
            yield
        finally:
            mine.depth -= 1
            if not mine.depth:
                self._give_back()
            self._count(under_way=-1)

    def suspend(self) -> bool:
        """The calling thread is about to wait for others. True: it imports, and must `resume`."""
        if not self._mine.depth:
            return False
        self._count(suspended=1)
        self._give_back()
        return True

    def resume(self) -> None:
        """The thread goes on: with the turn, if nobody else has taken it. To wait for that might be
        for ever, since another may wait for the very module that this one imports."""
        self._count(suspended=-1)
        if not self._mine.held:
            take(self._turn, self._mine.held, 0.0)

    def _give_back(self) -> None:
        held = self._mine.held
        if held:
            held.clear()
            self._turn.release()

    def _count(self, under_way: int = 0, suspended: int = 0) -> None:
        with self._counting:
            self.under_way = max(0, self.under_way + under_way)  # this may be a child by now
            self._suspended += suspended

    def begin_anew(self) -> None:
        """In a forked child: the other threads are not there, whatever they were about."""
        self.__init__()  # type: ignore[misc]


def is_complete(module: str) -> bool:
    """Whether a module is there, imported to its end."""
    found = sys.modules.get(module)
    return found is not None and not getattr(
        getattr(found, "__spec__", None), "_initializing", False
    )


IMPORTS: Final = Imports()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=IMPORTS.begin_anew)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return IMPORTS.find(module, name, super().find_class)


def loads(stream: Any) -> Any:
    """`pickle.loads`, for whatever other threads may read pickles too."""
    return _Unpickler(io.BytesIO(stream)).load()
