"""When a backward pass is over.

Gradients travel from worker to worker, and nobody sees them all. Two questions, two small answers,
both plain values without any communication:

*Is it finished?* Each run of a component tells which stitches' gradients it consumed and which it
emitted. The initiator keeps a **balance** per stitch, + emitted, − consumed. The pass is finished
when the roots' component has run and every balance is zero: an emission is always told together
with the consumption that caused it, so a report that has not come yet leaves a balance that is not
zero, in whatever order the reports come. A report may therefore ride on the last gradient that its
run emits, and a long chain of workers costs a single report at its end.

*Is it stuck?* (FAST only, where an assumption may be false.) Four counters, by Mattern: if two
successive **waves** of questions find the same numbers of gradients sent and received, as many sent
as received, and nobody active in the first, then nothing can ever happen again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstitch.ids import GlobalId, WorkerId


class Balance:
    """Which gradients are on their way: emitted and not consumed, as far as reports tell. Each
    stitch is emitted once and consumed once in a pass; either may be told first."""

    def __init__(self) -> None:
        self._emitted: set[GlobalId] = set()
        self._consumed: set[GlobalId] = set()
        self._settled: set[GlobalId] = set()

    def add(self, emitted: Sequence[GlobalId], consumed: Sequence[GlobalId]) -> None:
        """Takes a report into account; harmless when repeated."""
        self._emitted.update(emitted)
        self._consumed.update(consumed)
        if self._emitted and self._consumed:
            self._settled |= self._emitted & self._consumed
        if self._settled:
            self._emitted -= self._settled
            self._consumed -= self._settled

    @property
    def is_zero(self) -> bool:
        """Whether nothing is on its way."""
        return not self._emitted and not self._consumed

    def owners(self) -> list[int]:
        """Returns the ranks of those whose stitches' gradients are on their way."""
        return sorted({each.rank for each in self._emitted})

    def __repr__(self) -> str:
        emitted = ", ".join(f"{each.counter} of rank {each.rank}" for each in sorted(self._emitted))
        return f"gradients of stitches {emitted or 'that were not yet reported'}"


def cancel(
    emitted: Sequence[GlobalId], consumed: Sequence[GlobalId]
) -> tuple[tuple[GlobalId, ...], tuple[GlobalId, ...]]:
    """Two reports put together, without what one emitted and the other consumed."""
    both = set(emitted).intersection(consumed) if emitted and consumed else None
    if not both:
        return tuple(emitted), tuple(consumed)
    return (
        tuple([message for message in emitted if message not in both]),
        tuple([message for message in consumed if message not in both]),
    )


class PassStatus(NamedTuple):
    """Where one worker stands in a pass, as it answers a wave.

    `sent` and `received` count gradients, null tokens included; `is_active` says whether anything
    runs that does not itself wait; `waiting` are the stitches whose gradients are waited for.
    """

    sent: int
    received: int
    is_active: bool
    waiting: tuple[GlobalId, ...]


class StandstillDetector:
    """Compares successive waves of `PassStatus`es."""

    def __init__(self) -> None:
        self._previous: dict[WorkerId, PassStatus] | None = None
        self._asked: frozenset[WorkerId] = frozenset()
        self._answers: dict[WorkerId, PassStatus] = {}
        self.wave = 0

    def begin(self, workers: Iterable[WorkerId]) -> int:
        """Begins the next wave, towards `workers`; returns its number."""
        self.wave += 1
        self._asked = frozenset(workers)
        self._answers = {}
        return self.wave

    def answer(self, wave: int, worker: WorkerId, status: PassStatus) -> tuple[GlobalId, ...]:
        """Notes an answer. Returns the stitches waited for if the pass is stuck, else none."""
        if wave != self.wave or worker not in self._asked:
            return ()
        self._answers[worker] = status
        if len(self._answers) < len(self._asked):
            return ()
        previous, self._previous = self._previous, self._answers
        statuses = self._answers.values()
        if (
            previous != self._answers
            or any(each.is_active for each in statuses)
            or sum(each.sent for each in statuses) != sum(each.received for each in statuses)
        ):
            return ()
        return tuple(sorted({message for each in statuses for message in each.waiting}))
