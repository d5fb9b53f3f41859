"""The words of the plan: contenders, comparisons, targets, and how much time all may take.

What is compared with what stands in `sections/`. Ratios are ours divided by the other's: below 1 we
are faster where times are compared, above 1 where rates are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.libraries import CALLEE, CALLER, FOURTH, LOCKSTITCH, RAW, THIRD, TORCH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from benchmarks.cases.timing import Sample

Prepare = Callable[..., "Sample | AbstractContextManager[Sample]"]
"""Gets the `Library` and returns what is to be timed; `raw` cases get None instead."""


@dataclass(frozen=True)
class Setting:
    """The world in which a case is measured."""

    names: tuple[str, ...] = (CALLER, CALLEE)
    tcp: bool = False
    examples: bool = False
    """Whether the programs of `examples/` are loaded into its processes."""


PAIR = Setting()
PAIR_OVER_TCP = Setting(tcp=True)
TRIO = Setting((CALLER, CALLEE, THIRD), examples=True)
QUARTET = Setting((CALLER, CALLEE, THIRD, FOURTH), examples=True)


@dataclass(frozen=True)
class Contender:
    """A library, and how its backward is asked."""

    library: str
    backward_options: Mapping[str, str] = field(default_factory=dict)


OURS = Contender(LOCKSTITCH)
INCUMBENT = Contender(TORCH)
FAST = Contender(LOCKSTITCH, {"mode": "fast"})
LIMIT = Contender(RAW)


@dataclass(frozen=True)
class Target:
    """What is promised: a bound on our ratio, on our distance to the limit, on our 99th percentile.

    A time's ratio is bounded from above, a rate's from below.
    """

    ratio: float | None = None
    distance: float | None = None
    p99_seconds: float | None = None


@dataclass(frozen=True)
class Comparison:
    """One row: the same case for us and for the other one, and beside it what the machine allows.

    `size`: bytes that one operation moves, where GB/s are shown. `hogs`: so many processes compete
    for the CPUs meanwhile. `patience_seconds`: how long one turn may last beyond its time, where
    somebody is expected to hang. `x`: the abscissa, where the row is a point of a curve.
    """

    name: str
    prepare: Prepare
    target: Target = Target()
    limit: Prepare | None = None
    other: Contender | None = INCUMBENT
    is_rate: bool = False
    size: int | None = None
    setting: Setting = PAIR
    hogs: int = 0
    patience_seconds: float | None = None
    x: float | None = None

    @property
    def unit(self) -> str:
        if self.size is not None:
            return "GB/s"
        return "/s" if self.is_rate else "s"

    @property
    def contenders(self) -> list[tuple[str, Contender, Prepare]]:
        """Who takes turns: the role in the row, who it is, and what it is asked to do."""
        found: list[tuple[str, Contender, Prepare]] = [("ours", OURS, self.prepare)]
        if self.other is not None:
            found.append(("other", self.other, self.prepare))
        if self.limit is not None:
            found.append(("limit", LIMIT, self.limit))
        return found


@dataclass(frozen=True)
class Section:
    """Rows that belong together. `x_label` makes a curve of them, `other` names who is on the
    right where it is not the incumbent."""

    title: str
    comparisons: list[Comparison]
    x_label: str = ""
    other: str = ""
    is_curve: bool = False


@dataclass(frozen=True)
class Pace:
    """How much time everything may take."""

    rounds: int
    turn_seconds: float
    curve_rounds: int
    idle_seconds: float
    case_seconds: float
    """After so long a case begins no further round."""
    patience_seconds: float
    """How long a turn may last beyond its time before its world is given up."""
    total_seconds: float
    """After so long no further case is begun, so that a run ends on the slowest machine."""
    greatest_world: int
    greatest_simulation: int


FULL = Pace(
    rounds=11,
    turn_seconds=0.15,
    curve_rounds=5,
    idle_seconds=5.0,
    case_seconds=15.0,
    patience_seconds=20.0,
    total_seconds=540.0,
    greatest_world=32,
    greatest_simulation=512,
)
QUICK = Pace(
    rounds=3,
    turn_seconds=0.04,
    curve_rounds=2,
    idle_seconds=2.0,
    case_seconds=4.0,
    patience_seconds=10.0,
    total_seconds=110.0,
    greatest_world=4,
    greatest_simulation=32,
)


def parameters(prepare: Any, *arguments: Any) -> Any:
    """A case for one size: `prepare(library, *arguments)`, and it can be sent to a process."""
    return _Bound(prepare, arguments)


@dataclass(frozen=True)
class _Bound:
    prepare: Any
    arguments: tuple[Any, ...]

    def __call__(self, library: Any) -> Any:
        return self.prepare(library, *self.arguments)
