"""What is compared with what, and what is promised.

Promises are ratios: ours divided by the other's. Below 1 we are faster where times are compared,
above 1 where calls per second are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.cases import backward, calls
from benchmarks.libraries import LOCKSTITCH, TORCH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.cases.timing import Sample
    from benchmarks.libraries import Library

IDLE_SHARE_AT_MOST = 0.005
"""Share of a core that a worker may use while nobody calls it."""


@dataclass(frozen=True)
class Contender:
    """A library, and how its backward is asked."""

    library: str
    backward_options: Mapping[str, str] = field(default_factory=dict)


OURS = Contender(LOCKSTITCH)
INCUMBENT = Contender(TORCH)
FAST = Contender(LOCKSTITCH, {"mode": "fast"})


@dataclass(frozen=True)
class Comparison:
    """One row: the same case for us and for the other one (None: it is known to hang there)."""

    name: str
    prepare: Callable[[Library], Sample]
    target: float | None = None
    other: Contender | None = INCUMBENT
    is_rate: bool = False
    """Whether the row shows operations per second and the target is a lower bound."""

    @property
    def contenders(self) -> list[Contender]:
        return [OURS] if self.other is None else [OURS, self.other]


@dataclass(frozen=True)
class Section:
    title: str
    comparisons: list[Comparison]


CALLS = Section(
    "calls",
    [
        Comparison("no-op rpc_sync", calls.call_nothing, 0.2),
        Comparison("echo of 4 floats", calls.call_echo, 0.25),
        Comparison("torch.add of 4 floats", calls.call_builtin),
        Comparison("remote + to_here", calls.make_and_fetch),
        Comparison("64 in flight: no-op", calls.call_nothing_in_flight, 5.0, is_rate=True),
        Comparison("64 in flight: echo", calls.call_echo_in_flight, 5.0, is_rate=True),
    ],
)

BACKWARD = Section(
    "backward",
    [
        Comparison("one call", backward.one_call, 1.0),
        Comparison("chain of 20 hops", backward.chain_of_hops, 1.0),
        Comparison("10,000 nodes on the callee", backward.long_graph_on_the_callee, 1.0),
        Comparison("3-layer MLP, 1M parameters", backward.mlp_on_the_callee, 1.2),
        Comparison("f(h) + remote(h)", backward.used_here_and_there, 1.0),
        Comparison("100 calls share h", backward.calls_that_share, 1.0),
        # The incumbent waits for ever for the gradient of what nobody used.
        Comparison("sent, but unused", backward.sent_but_unused, other=None),
    ],
)

SMART_AGAINST_FAST = Section(
    "our SMART, our FAST on the right",
    [
        Comparison(row.name, row.prepare, 1.1, FAST)
        for row in BACKWARD.comparisons
        if row.other is not None  # all take part in what is sent
    ],
)

SECTIONS = [CALLS, BACKWARD, SMART_AGAINST_FAST]
