"""The answers of one slot, for those who wait for them.

A slot answers in the order of its requests. Somebody else's answer is kept for them; one that
nobody will ask for, since the pass that wanted it has been given up, is dropped.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD: Final = 0
BACKWARD: Final = 1
COLLECT: Final = 2

Key = tuple[int, int]
"""What is answered: one of the kinds above, and a number."""


_WORK: Final = {FORWARD: "forward", BACKWARD: "backward", COLLECT: "collect gradients"}


def record_key(slot: str, key: Key) -> tuple[str, int]:
    """Returns by what both sides of a slot know a request, for who records."""
    kind, number = key
    return slot, (number << 2) + kind + 1


def work_in_words(key: Key, slot: str) -> str:
    """Returns what a slot does, for who records."""
    return f"{_WORK[key[0]]} in {slot}"


class Answers:
    """Keeps order among the answers that `receive` brings: pairs of a key and an answer. It is told
    for an answer of which kind somebody waits."""

    def __init__(self, receive: Callable[[int], tuple[Key, Any]]) -> None:
        self._receive = receive
        self._pending: set[Key] = set()
        self._kept: dict[Key, Any] = {}
        self._released: deque[int] = deque()

    def expect(self, key: Key) -> None:
        """A request has been posted."""
        self._forget_released()
        self._pending.add(key)

    def is_expected(self, key: Key) -> bool:
        """Whether `wait(key)` will end."""
        return key in self._pending or key in self._kept

    def wait(self, key: Key) -> Any:
        """The answer for `key`, which is expected."""
        while key not in self._kept:
            self.take_one(key[0])
        return self._kept.pop(key)

    def drain(self, is_there: Callable[[], bool]) -> None:
        """Takes in what has come, so that the slot is not kept from answering."""
        while self._pending and is_there():
            self.take_one(FORWARD)

    def take_one(self, kind: int = FORWARD) -> None:
        """Waits for the next answer, whosoever it is."""
        self.accept(*self._receive(kind))

    def accept(self, arrived: Key, answer: Any) -> None:
        """An answer has come."""
        if arrived in self._pending:
            self._pending.discard(arrived)
            self._kept[arrived] = answer
        self._forget_released()

    def release(self, number: int) -> None:
        """Takes note that nobody asks for anything with this number any more. May be called from
        anywhere, at any time."""
        self._released.append(number)

    def _forget_released(self) -> None:
        while self._released:
            number = self._released.popleft()
            for kind in (FORWARD, BACKWARD):
                self._pending.discard((kind, number))
                self._kept.pop((kind, number), None)
