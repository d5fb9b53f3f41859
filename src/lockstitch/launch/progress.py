"""How far the training has come, as a line: from the steps that workers tell of."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lockstitch.clock import Clock
    from lockstitch.endings import StepMark

_REMEMBERED: Final = 30
_TOLD_SECONDS: Final = 0.5


class Progress:
    """The last step of each worker that tells of any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[int, StepMark] = {}
        self._seen: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def note(self, rank: int, step: StepMark) -> str:
        """Notes a step; returns the line: that of the lowest rank that tells of steps, how fast it
        is, and who is behind."""
        self._last[rank] = step
        first = min(self._last)
        leading = self._last[first]
        if rank == first:
            self._seen.append((self._clock.now(), step.number))
        parts = [f"step {leading.number}"]
        parts += [f"{name} {value:.4g}" for name, value in leading.values]
        speed = self._speed()
        if speed:
            parts.append(f"{speed:.3g} steps/s")
        slowest = min(self._last, key=lambda each: (self._last[each].number, each))
        behind = leading.number - self._last[slowest].number
        # They take turns, and tell of their steps only now and then.
        if behind > 1 + speed * _TOLD_SECONDS:
            parts.append(f"rank {slowest} is {behind} steps behind")
        return " · ".join(parts)

    def _speed(self) -> float:
        if len(self._seen) < 2:
            return 0.0
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return max(0.0, (last - first) / (now - began)) if now > began else 0.0
