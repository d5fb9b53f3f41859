"""Who gets which item next: the bookkeeping of a `map`. Values in, values out.

An item goes to whoever is free. After the first failure no more are handed out; those that are
under way come to their end. Only where it was asked for, the items of a worker that died are handed
out once more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

W = TypeVar("W", bound="Hashable")


class WorkList(Generic[W]):
    """See the module. `items` are taken as they are needed; `in_flight` is how many one worker has
    at a time; `reassigns`: whether items of the dead go to others."""

    def __init__(
        self, items: Iterable[Any], workers: Iterable[W], in_flight: int, *, reassigns: bool
    ) -> None:
        self._items = enumerate(items)
        self._returned: deque[tuple[int, Any]] = deque()
        self._free = deque([worker for _ in range(in_flight) for worker in workers])
        self._held: dict[int, tuple[W, Any]] = {}
        self._dead: set[W] = set()
        self._reassigns = reassigns
        self.results: dict[int, Any] = {}
        self.errors: dict[int, Exception] = {}

    def __len__(self) -> int:
        """How many items are under way."""
        return len(self._held)

    def hand_out(self) -> tuple[W, int, Any] | None:
        """The next worker, the index of its item and the item; None where nobody is free, or there
        is nothing to be handed out now."""
        if self.errors or not self._free:
            return None
        following = self._returned.popleft() if self._returned else next(self._items, None)
        if following is None:
            return None
        worker = self._free.popleft()
        index, item = following
        self._held[index] = (worker, item)
        return worker, index, item

    def note_result(self, index: int, result: Any) -> None:
        """An item is done, and its worker free."""
        worker, _ = self._held.pop(index)
        self.results[index] = result
        if worker not in self._dead:
            self._free.append(worker)

    def note_error(self, index: int, error: Exception, *, is_dead: bool) -> None:
        """The worker has failed at an item, or is dead."""
        worker, item = self._held.pop(index)
        if not is_dead:
            self.errors[index] = error
            return
        self._dead.add(worker)
        self._free = deque([each for each in self._free if each != worker])
        has_others = bool(self._free or {each for each, _ in self._held.values()} - self._dead)
        if self._reassigns and has_others:
            self._returned.append((index, item))
        else:
            self.errors[index] = error

    def holder(self, index: int) -> W:
        """Who has an item that is under way."""
        return self._held[index][0]

    def in_order(self) -> list[Any]:
        """The results in the order of the items."""
        return [self.results[index] for index in range(len(self.results))]
