"""The contexts of one worker: opened here or joined with the first message, until their release.

A call may be on its way while its context is released. So that it does not bring the context back
to life, the latest of those that were released are remembered.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from lockstitch.autograd.context import DistAutogradContext
from lockstitch.ids import context_id

if TYPE_CHECKING:
    from lockstitch.ids import WorkerId

_REMEMBERED_RELEASES: Final = 4096


def not_found(identifier: int) -> RuntimeError:
    """Returns what to raise for a context that is not there."""
    return RuntimeError(
        f"Could not find autograd context with id: {identifier}. A context lives until the block "
        "ends that opened it: with lockstitch.autograd.context() as context_id"
    )


class Contexts:
    """The contexts of one worker. `home` tells them from those of other workers in the same
    process; see `current_context`."""

    def __init__(self, worker: WorkerId, home: object) -> None:
        self._worker = worker
        self._home = home
        self._alive: dict[int, DistAutogradContext] = {}
        self._released: OrderedDict[int, None] = OrderedDict()
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._alive)

    def alive(self) -> list[DistAutogradContext]:
        """All that there are now."""
        with self._lock:
            return list(self._alive.values())

    def new(self) -> DistAutogradContext:
        """A new one, of this worker's, which is not known here yet."""
        return DistAutogradContext(context_id(self._worker, next(self._numbers)), self._home)

    def add(self, context: DistAutogradContext) -> None:
        """Lets a new one be found."""
        with self._lock:
            self._alive[context.id] = context

    def get(self, identifier: int) -> DistAutogradContext | None:
        """The context of that id; None where there is none, or no more."""
        return self._alive.get(identifier)

    def find(self, identifier: int) -> DistAutogradContext:
        """The context of that id. Raises `RuntimeError` where there is none, or no more."""
        context = self._alive.get(identifier)
        if context is None:
            raise not_found(identifier)
        return context

    def join(self, identifier: int) -> DistAutogradContext | None:
        """The context of a message, made on first contact; None once it is released."""
        context = self._alive.get(identifier)
        if context is not None:
            return context
        with self._lock:
            if identifier in self._released:
                return None
            return self._alive.setdefault(identifier, DistAutogradContext(identifier, self._home))

    def remove(self, identifier: int) -> bool:
        """Forgets a context and remembers that it is released; False where it was before."""
        with self._lock:
            if self._alive.pop(identifier, None) is None:
                return False
            self._remember(identifier)
            return True

    def note_release(self, identifier: int) -> None:
        """A context was released of which this worker has not heard yet."""
        with self._lock:
            self._remember(identifier)

    def clear(self) -> list[DistAutogradContext]:
        """Forgets all contexts; returns them."""
        with self._lock:
            contexts, self._alive = list(self._alive.values()), {}
            return contexts

    def _remember(self, identifier: int) -> None:
        self._released[identifier] = None
        while len(self._released) > _REMEMBERED_RELEASES:
            self._released.popitem(last=False)
