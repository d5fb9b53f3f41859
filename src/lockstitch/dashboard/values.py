"""What the page is told at a look, as plain values. Times in seconds since the epoch, rates per
second, sizes in bytes.

No value holds what a call's arguments or a tensor contain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.observe.call_rates import FunctionCalls
    from lockstitch.observe.text import Paragraph


@dataclass(frozen=True, slots=True)
class Row:
    """A worker, in the table. `key` stays its own as long as it lives. `state`: "ok", "silent"
    (it did not answer), "starting" (it cannot be asked yet), "ended" (well) or "gone" (in another
    way), since when that is known, `why`, and what its main thread does. `numbers` by the name of
    the column; what is not told is left out."""

    key: str
    name: str
    rank: str
    host: str
    pid: int
    state: Literal["ok", "silent", "starting", "ended", "gone"]
    numbers: Mapping[str, float]
    why: str = ""
    since: float | None = None
    main: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """Who calls whom, by name: calls and bytes per second since the look before, there and back,
    and how many calls have no answer yet."""

    caller: str
    callee: str
    calls: float
    bytes: float
    pending: int


@dataclass(frozen=True, slots=True)
class Point:
    """Values at a time: chart → line → value."""

    at: float
    values: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class State:
    """All that the page shows of a moment, but for the series of its charts. `unreached`: what is
    not known of the job, and why, a sentence for each; `ended_at`: when the job had ended, None
    while it runs."""

    name: str
    pid: int
    at: float
    started_at: float
    job_state: str
    rows: tuple[Row, ...]
    edges: tuple[Edge, ...]
    functions: tuple[FunctionCalls, ...]
    waits: tuple[Paragraph, ...]
    contexts: tuple[int, ...]
    unreached: tuple[str, ...] = ()
    ended_at: float | None = None
