"""Counts of calls by function and peer: how many, how long they take, how many bytes they bring.

Calls are counted only while somebody looks (`attach.recorder`). Each is noted when it is over, by
whichever thread; what is noted is counted many at a time, by one thread at a time. Durations are
counted in bins, ten to a power of ten (Renard's numbers), from which quantiles follow to within an
eighth.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, Literal

from lockstitch.attach.values import CallTraffic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstitch.attach.spans import Label

_STEPS: Final = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
BOUNDS: Final = tuple(float(f"{step}e{power}") for power in range(-6, 3) for step in _STEPS)
"""The upper bounds of the bins, in seconds, from a microsecond to 800 s; one bin more has what is
above the last."""
MOST_SERIES: Final = 1000
OTHERS: Final = "other functions"
"""Stands for all functions that come when so many series are counted already."""

Role = Literal["made", "served"]
_ROLES: Final[dict[str, Role]] = {
    "call": "made", "answer": "made", "serve": "served", "conclude": "served",
}  # fmt: skip
"""What a call is counted as whose span is of such a kind."""


class Series:
    """What is counted of one function and one peer. Calls are noted in `calls`, by any thread and
    without a lock: how many seconds each has taken, the bytes that it sent and received, and
    whether it failed."""

    __slots__ = ("bins", "calls", "count", "failed", "received", "seconds", "sent")

    def __init__(self) -> None:
        self.calls: list[tuple[float, int, int, bool]] = []
        self.count = self.failed = self.sent = self.received = 0
        self.seconds = 0.0
        self.bins = [0] * (len(BOUNDS) + 1)

    def note(self, seconds: float, sent: int, received: int, *, has_failed: bool) -> None:
        """Notes a call that has ended."""
        self.calls.append((seconds, sent, received, has_failed))

    def count_noted(self) -> None:
        """Counts what has been noted so far, while others go on noting."""
        noted = self.calls[:]
        del self.calls[: len(noted)]
        if noted:
            seconds, sent, received, failed = zip(*noted, strict=True)
            self.count += len(noted)
            self.seconds += sum(seconds)
            self.sent += sum(sent)
            self.received += sum(received)
            self.failed += sum(failed)
            ordered, first = sorted(seconds), 0  # a search for each would take longer than the rest
            while first < len(ordered):
                place = bisect_left(BOUNDS, ordered[first])
                end = bisect_right(ordered, BOUNDS[place]) if place < len(BOUNDS) else len(ordered)
                self.bins[place] += end - first
                first = end


class Traffic:
    """The counts of one process."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Role, str, str], Series] = {}

    def __repr__(self) -> str:
        return f"<Traffic · {len(self._series)} series>"

    def series(self, label: Label) -> Series:
        """Returns where the calls are counted whose spans have that label."""
        kind, function, worker, peer = label
        role = _ROLES[kind]
        key = (worker, role, function, peer)
        known = self._series.get(key)
        if known is not None:
            return known
        if len(self._series) >= MOST_SERIES:
            key = (worker, role, OTHERS, peer)
        return self._series.setdefault(key, Series())

    def count_noted(self) -> None:
        """Counts what has been noted so far of all calls."""
        for series in list(self._series.values()):
            if series.calls:
                series.count_noted()

    def of(self, worker: str) -> tuple[CallTraffic, ...]:
        """Returns what has been counted of a worker."""
        told = []
        for (whose, role, function, peer), each in list(self._series.items()):
            if whose == worker:
                each.count_noted()
                if each.count:
                    told.append(
                        CallTraffic(
                            role, function, peer, each.count, each.failed, each.seconds,
                            each.sent, each.received, _trimmed(each.bins),
                        )
                    )  # fmt: skip
        return tuple(told)


def quantile(bins: Sequence[int], share: float) -> float | None:
    """Returns below how many seconds that share of the counted durations was, by interpolation in
    its bin; None where there are none."""
    total = sum(bins)
    if not total:
        return None
    wanted, below = share * total, 0
    for place, count in enumerate(bins):
        if count and below + count >= wanted:
            if place >= len(BOUNDS):
                return BOUNDS[-1]
            lower = BOUNDS[place - 1] if place else 0.0
            return lower + (BOUNDS[place] - lower) * max(0.0, wanted - below) / count
        below += count
    return BOUNDS[-1]


def added(first: Sequence[int], second: Sequence[int], sign: int = 1) -> tuple[int, ...]:
    """Returns the bins of two counts together, or the difference for a `sign` of -1."""
    longest = max(len(first), len(second))
    one, other = ([*bins, *[0] * (longest - len(bins))] for bins in (first, second))
    return tuple(a + sign * b for a, b in zip(one, other, strict=True))


def growth(now: CallTraffic, before: CallTraffic | None) -> CallTraffic:
    """Returns what has been counted since an earlier count of the same."""
    if before is None or before.count > now.count:
        return now
    return CallTraffic(
        now.role,
        now.function,
        now.peer,
        now.count - before.count,
        now.failed - before.failed,
        now.seconds - before.seconds,
        now.sent - before.sent,
        now.received - before.received,
        added(now.bins, before.bins, -1),
    )


def grown(now: Iterable[CallTraffic], before: Iterable[CallTraffic]) -> list[CallTraffic]:
    """Returns what has been counted since earlier counts, of which some may be of the same."""
    known = {(each.role, each.function, each.peer): each for each in before}
    return [growth(each, known.get((each.role, each.function, each.peer))) for each in now]


def _trimmed(bins: Sequence[int]) -> tuple[int, ...]:
    last = max((place for place, count in enumerate(bins) if count), default=-1)
    return tuple(bins[: last + 1])
