"""Which slots there are, and which of them are left empty because workers have failed there.

A *slot* is where a worker may run: a host and a number. One whose worker has failed may have to
rest, each time for longer; after some failures it is struck out. A host that fails a lot thereby
gets fewer workers, in the end none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONG_LIFE_SECONDS: Final = 300.0
"""A worker that has lived so long has not failed because of its slot."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot: where a worker may run."""

    host: str
    index: int


@dataclass(slots=True)
class _Record:
    """What is remembered of a slot, also while its host is away."""

    failures: int = 0
    closed_until: float = 0.0


class SlotBook:
    """The slots that there are now, in the order in which they are filled.

    `most_failures`: after so many a slot is struck out. `cooldown_seconds`: how long a slot rests
    after its first failure, and at most; it doubles each time. Times are of any one clock.
    """

    def __init__(self, most_failures: int, cooldown_seconds: tuple[float, float]) -> None:
        self._most_failures = most_failures
        self._cooldown_seconds = cooldown_seconds
        self._hosts: dict[str, int] = {}
        self._count = 0
        self._records: dict[Slot, _Record] = {}
        self._struck_out: set[Slot] = set()
        self._unusable = 0
        """How many of the slots that there are now are struck out."""

    def __iter__(self) -> Iterator[Slot]:
        for host, count in self._hosts.items():
            for index in range(count):
                yield Slot(host, index)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, slot: Slot) -> bool:
        return slot.index < self._hosts.get(slot.host, 0)

    def note_hosts(self, slots: Iterable[tuple[str, int]]) -> None:
        """Takes in how many slots each host has now; the first is filled first."""
        self._hosts = dict(slots)
        self._count = sum(self._hosts.values())
        self._count_unusable()

    def note_failure(self, slot: Slot, started_at: float, now: float) -> None:
        """Takes in that a worker has failed, which was started in that slot then."""
        record = self._records.setdefault(slot, _Record())
        if now - started_at > _LONG_LIFE_SECONDS:
            record.failures = 0
        record.failures += 1
        if record.failures >= self._most_failures:
            self._struck_out.add(slot)
        else:
            self._struck_out.discard(slot)
        self._count_unusable()
        shortest, longest = self._cooldown_seconds
        if longest:
            record.closed_until = now + min(longest, shortest * 2 ** (record.failures - 1))

    def is_open(self, slot: Slot, now: float) -> bool:
        """Whether a worker may be started there."""
        if slot in self._struck_out:
            return False
        record = self._records.get(slot)
        if record is not None and record.closed_until:
            if now < record.closed_until:
                return False
            record.closed_until = 0.0
        return True

    @property
    def usable(self) -> int:
        """How many slots are not struck out."""
        return self._count - self._unusable

    @property
    def reopenings(self) -> list[float]:
        """The times at which slots that rest will have rested long enough."""
        return [record.closed_until for record in self._records.values() if record.closed_until]

    def _count_unusable(self) -> None:
        self._unusable = sum(slot in self for slot in self._struck_out)
