"""Which spans of a trace belong together: a call and its serving, a stitch and its gradient.

Two ends have a *key* in common: the names of caller and callee and the number of the request, or
the stitch, or the message between two stages. A flow goes from a point in one span to a point in
the other. An end whose other end was not recorded (it lies beyond the edge of the window, or was
dropped) makes no flow, and is counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lockstitch.attach.spans import Span

FlowKind = Literal["call", "reply", "stitch", "gradient", "handover", "slot"]
Key = tuple["FlowKind", str, str, int]


class Point(NamedTuple):
    """A moment in a span: `at` in nanoseconds of its process's clock."""

    track: int
    span: int
    at: int


class Flow(NamedTuple):
    """What goes from one span to another."""

    kind: FlowKind
    begin: Point
    end: Point


class Flows(NamedTuple):
    """The flows of a trace, and how many ends of others were recorded without the other end."""

    flows: list[Flow]
    cut: int


class _Ends(NamedTuple):
    begins: list[Point]
    ends: list[Point]


_BEGINS: Final[dict[str, FlowKind]] = {
    "call": "call",
    "send": "call",
    "stitch": "stitch",
    "gradient sent": "gradient",
    "handover": "handover",
    "request": "slot",
}
"""Which flow leaves a span at its start."""
_ARRIVES: Final[dict[str, tuple[FlowKind, ...]]] = {
    "serve": ("call",),
    "answer": ("reply",),
    "gradient received": ("gradient", "stitch"),
    "stage": ("handover",),
    "slot": ("slot",),
}
"""Which flows arrive at a span's start."""
_ANSWERS: Final = ("serve", "conclude")
"""From these the answer leaves, at the time `at`."""


def find_flows(tracks: Sequence[Sequence[Span]], epochs: Sequence[int] | None = None) -> Flows:
    """Returns the flows between the spans of several processes. An end is joined to the last begin
    of its key that was not later; a stitch to each of its gradients. `epochs`: for each process,
    what is to be added to its times for those of a common clock, about; None: they have one."""
    epochs = [0] * len(tracks) if epochs is None else epochs
    found: defaultdict[Key, _Ends] = defaultdict(lambda: _Ends([], []))
    for track, spans in enumerate(tracks):
        for place, span in enumerate(spans):
            for key, is_begin, at in _ends_of(span):
                ends = found[key]
                (ends.begins if is_begin else ends.ends).append(Point(track, place, at))
    flows: list[Flow] = []
    cut = 0
    for key, ends in found.items():
        pairs = list(_pairs(ends, epochs, shares_begins=key[0] == "stitch"))
        flows += [Flow(key[0], begin, end) for begin, end in pairs]
        if key[0] == "stitch":  # one whose gradient never comes is nothing unusual
            cut += len(ends.ends) - len(pairs)
        else:
            cut += len(ends.begins) + len(ends.ends) - 2 * len(pairs)
    return Flows(flows, cut)


def _ends_of(span: Span) -> Iterator[tuple[Key, bool, int]]:
    """Yields the ends of flows in a span: key, whether it is a begin, and when."""
    if not span.number:
        return
    kind, peer, me, number = span.kind, span.peer, span.worker, span.number
    if kind in ("call", "send", "answer"):
        pair = (me, peer)
    elif kind in _ANSWERS:
        pair = (peer, me)
    else:
        pair = (peer, "")
    if kind in _BEGINS:
        yield (_BEGINS[kind], *pair, number), True, span.start
    for flow in _ARRIVES.get(kind, ()):
        yield (flow, *pair, number), False, span.start
    if kind == "call":
        yield ("reply", *pair, number), False, max(span.start, span.end - 1)
    elif kind in _ANSWERS and span.at:
        yield ("reply", *pair, number), True, min(max(span.at, span.start), span.end - 1)


def _pairs(
    ends: _Ends, epochs: Sequence[int], *, shares_begins: bool
) -> Iterable[tuple[Point, Point]]:
    if len(ends.begins) == 1 and (shares_begins or len(ends.ends) == 1):
        return [(ends.begins[0], end) for end in ends.ends]  # whatever the clocks say

    def moment(point: Point) -> int:
        return point.at + epochs[point.track]

    begins = sorted(ends.begins, key=moment)
    times = [*map(moment, begins)]
    pairs: list[tuple[Point, Point]] = []
    used: set[int] = set()
    for end in sorted(ends.ends, key=moment):
        place = bisect_right(times, moment(end)) - 1
        if place >= 0 and (shares_begins or place not in used):
            used.add(place)
            pairs.append((begins[place], end))
    return pairs
