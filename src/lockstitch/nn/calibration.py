"""Which of several ways of doing the same is the fastest, found out by doing it.

The ways take turns, so that whatever else the machine does disturbs all of them alike. A turn is
two steps, of which the first does not count: it finds what another way has left behind, in the
caches and among the threads. A step is a forward pass and the backward pass of its output; what the
caller does between the two is not counted.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROUNDS: Final = 3
_MARGIN: Final = 0.05
_PATIENCE: Final = 8
_STEPS_OF_A_TURN: Final = 2


@dataclass(eq=False)
class Step:
    """One forward pass in one of the ways, and its backward pass; times in seconds."""

    way: str
    begun: float
    forward_took: float | None = None
    backward_begun: float | None = None


class Calibration:
    """Times `ways`, of which the first is kept unless another one is faster by `margin`, a share
    of its time. Medians of `rounds` steps each, each after one to warm up; the least times must
    say the same, for on a busy machine most steps of the first way may have been disturbed.

    After some forward passes in a row that no backward pass followed, those alone are timed.
    """

    def __init__(
        self,
        ways: Sequence[str],
        clock: Callable[[], float] = time.perf_counter,
        rounds: int = _ROUNDS,
        margin: float = _MARGIN,
    ) -> None:
        self.choice: str | None = None
        """The way that was settled on."""
        self._clock = clock
        self._rounds = rounds
        self._margin = margin
        self._default = ways[0]
        self._times: dict[str, list[float]] = {way: [] for way in ways}
        self._open: Step | None = None
        self._without_backward = 0
        self._counts_backward = True
        self._settle_if_done()

    def __repr__(self) -> str:
        state = "undecided" if self.choice is None else f"settled on {self.choice}"
        return f"<Calibration {state}: {self._medians()}>"

    @property
    def way(self) -> str:
        """How the next step is to be done."""
        if self.choice is not None:
            return self.choice
        return min(self._times, key=lambda way: len(self._times[way]) // _STEPS_OF_A_TURN)

    def reject(self, way: str) -> None:
        """`way` cannot be gone. Without the first one nothing is left to choose: it stays."""
        if way != self._default:
            self._times.pop(way, None)
        if self.choice == way:
            self.choice = self._default
        self._settle_if_done()

    def keep_default(self) -> None:
        """Settles on the first way, whatever the times."""
        self.choice = self._default

    def begin(self) -> Step:
        """A forward pass begins."""
        if self._open is not None and self._open.forward_took is not None:
            self._without_backward += 1
            if self._without_backward == _PATIENCE:
                self._counts_backward = False
                self._times = {way: [] for way in self._times}
        self._open = Step(self.way, self._clock())
        return self._open

    def end_forward(self, step: Step) -> None:
        """Notes that the forward pass has returned."""
        step.forward_took = self._clock() - step.begun
        if not self._counts_backward:
            self._count(step, step.forward_took)

    def begin_backward(self, step: Step) -> bool:
        """The backward pass reaches what the forward pass returned. Whether its end matters."""
        if step is not self._open or step.backward_begun is not None or not self._counts_backward:
            return False
        step.backward_begun = self._clock()
        return True

    def end_backward(self, step: Step) -> None:
        """All gradients are there."""
        if step is self._open and step.forward_took is not None and step.backward_begun is not None:
            self._count(step, step.forward_took + self._clock() - step.backward_begun)

    def _count(self, step: Step, seconds: float) -> None:
        self._open = None
        self._without_backward = 0
        if self.choice is None and step.way in self._times:
            self._times[step.way].append(seconds)
            self._settle_if_done()

    def _settle_if_done(self) -> None:
        if self.choice is not None:
            return
        if len(self._times) == 1:
            self.choice = self._default
        elif all(len(times) >= _STEPS_OF_A_TURN * self._rounds for times in self._times.values()):
            medians = self._medians()
            best = min(medians, key=lambda way: medians[way])
            median_limit = (1 - self._margin) * medians[self._default]
            least_limit = (1 - self._margin) * min(self._counted(self._default))
            is_faster = medians[best] <= median_limit and min(self._counted(best)) <= least_limit
            self.choice = best if is_faster else self._default

    def _medians(self) -> dict[str, float]:
        return {
            way: statistics.median(self._counted(way)) for way in self._times if self._counted(way)
        }

    def _counted(self, way: str) -> list[float]:
        return self._times[way][_STEPS_OF_A_TURN - 1 :: _STEPS_OF_A_TURN]
