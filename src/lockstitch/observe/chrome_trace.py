"""A trace in the Chrome trace event format, which Perfetto and chrome://tracing open.

Each process is a process there, in the order of ranks, and each thread a row of it. What holds a
thread is a slice (`X`); what does not (a call that nobody waits for, a collective, a request that
has let go of its thread) is a pair of `b` and `e` on a row of its own. Flows are pairs of `s` and
`f`, each at a moment within the slice that it belongs to; both ends have the same number, and no
end stands alone.

Slices of one row lie within each other or apart, as the format demands. Those that do not (steps of
coroutines that take turns, ranges that are left in another order) are put on further rows.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lockstitch.attach.spans import Span
    from lockstitch.attach.values import ThreadReport
    from lockstitch.observe.clocks import HostClock
    from lockstitch.observe.flows import Flow, Point
    from lockstitch.observe.tracks import Track

Event = dict[str, Any]

_ASYNCHRONOUS: Final = ("collective",)
_CATEGORIES: Final = {
    "call": "rpc", "send": "rpc", "answer": "rpc", "serve": "rpc", "conclude": "rpc",
    "stitch": "autograd", "gradient sent": "autograd", "gradient received": "autograd",
    "backward": "autograd", "collective": "collective", "handover": "pipeline",
    "stage": "pipeline", "request": "slot", "slot": "slot", "range": "program",
}  # fmt: skip
_PREFIXES: Final = {
    "call": "call ", "send": "send ", "answer": "answer of ", "serve": "serve ",
    "conclude": "answer ",
}  # fmt: skip
_FIRST_SPARE_ROW: Final = 1 << 24
"""Rows beside those of threads have numbers above those of the system's threads."""


def events_of(
    tracks: Sequence[Track], flows: Iterable[Flow], clocks: Iterable[HostClock]
) -> Iterator[Event]:
    """Yields the events of a trace: who is who first, then all that has a time, in its order."""
    offsets = {each.host: each.offset_nanoseconds for each in clocks}
    origin = min((_first_moment(each) + offsets[each.host] for each in tracks), default=0)
    numbers = _process_numbers(tracks)
    places = [
        _Process(track, number, offsets[track.host] - origin, order)
        for order, (track, number) in enumerate(zip(tracks, numbers, strict=True))
    ]
    timed: list[tuple[int, int, Event]] = []
    for place in places:
        yield from place.names()
        timed += place.timed()
    timed += _flow_events(flows, places)
    timed.sort(key=lambda each: each[:2])
    for at, _, event in timed:
        event["ts"] = at / 1e3
        yield event


def _first_moment(track: Track) -> int:
    """When the recording began, or the first of its spans, which may be earlier."""
    starts = (each.at if each.kind == "answer" and each.at else each.start for each in track.spans)
    return min((track.began_at, *starts))


def _process_numbers(tracks: Sequence[Track]) -> list[int]:
    """The numbers of processes, which two hosts may have given twice."""
    numbers = [each.pid for each in tracks]
    if len(set(numbers)) == len(numbers):
        return numbers
    return [order + 1 for order in range(len(numbers))]


class _Process:
    """One process: its rows, and which of them each slice is on."""

    def __init__(self, track: Track, number: int, shift: int, order: int) -> None:
        self.number = number
        self.shift = shift
        self._track = track
        self._order = order
        known = {each.ident: each for each in track.threads}
        by_thread: defaultdict[int, list[int]] = defaultdict(list)
        for place, span in enumerate(track.spans):
            if span.kind not in _ASYNCHRONOUS:
                by_thread[span.thread].append(place)
        self.rows: dict[int, int] = {}
        """The row of each slice, by its place among the spans."""
        self._row_names: dict[int, str] = {}
        spare = iter(range(_FIRST_SPARE_ROW, 1 << 31))
        for ident, places in by_thread.items():
            thread = known.get(ident)
            native = thread.native_id if thread is not None else 0
            name = _name_of_thread(thread, ident)
            for count, lane in enumerate(_lanes(track.spans, places)):
                row = native if native and not count else next(spare)
                self._row_names[row] = name if not count else f"{name} ({count + 1})"
                self.rows.update(dict.fromkeys(lane, row))

    def names(self) -> Iterator[Event]:
        track = self._track
        rank = f"rank {track.rank}" if track.rank else ""
        who = ", ".join(each for each in (rank, f"pid {track.pid}") if each and each != track.name)
        yield self._named("process_name", 0, name=f"{track.name} ({who})")
        yield self._named("process_labels", 0, labels=track.host)
        yield self._named("process_sort_index", 0, sort_index=self._order)
        for order, (row, name) in enumerate(self._row_names.items()):
            yield self._named("thread_name", row, name=name)
            index = -1 if name == "MainThread" else order
            yield self._named("thread_sort_index", row, sort_index=index)

    def _named(self, what: str, row: int, **about: object) -> Event:
        return {"ph": "M", "name": what, "pid": self.number, "tid": row, "args": about}

    def timed(self) -> Iterator[tuple[int, int, Event]]:
        """Yields what has a time: that, a rank among events of one time, and the event."""
        track = self._track
        served: dict[tuple[str, int], int] = {}
        for place, span in enumerate(track.spans):
            if span.kind in _ASYNCHRONOUS:
                yield from self._collective(place, span)
                continue
            at, length = span.start + self.shift, max(1, span.end - span.start)
            event = self._event("X", span, self.rows[place])
            event["dur"] = length / 1e3
            event["args"] = _arguments(span)
            yield at, -length, event
            if span.kind == "answer":
                yield from self._pair(span, place, "call ", span.at, span.end)
            elif span.kind == "serve" and not span.at:
                served[span.peer, span.number] = span.start
            elif span.kind == "conclude":
                since = served.pop((span.peer, span.number), None)
                if since is not None:
                    yield from self._pair(span, place, "serve ", since, span.end)
        if track.dropped:
            about = f"{track.dropped} earlier spans dropped"
            first = min((each.start for each in track.spans), default=track.began_at)
            event = {"ph": "i", "name": about, "cat": "lockstitch", "s": "p", "pid": self.number}
            yield first + self.shift, 0, event | {"tid": next(iter(self._row_names), 0)}

    def _collective(self, place: int, span: Span) -> Iterator[tuple[int, int, Event]]:
        ready = min(max(span.at, span.start), span.end) if span.at else span.end
        yield from self._pair(span, place, "", span.start, span.end)
        if ready > span.start:
            yield from self._pair(span, place, "negotiate ", span.start, ready, is_part=True)
        if span.end > ready:
            yield from self._pair(span, place, "work on ", ready, span.end, is_part=True)

    def _pair(
        self, span: Span, place: int, prefix: str, start: int, end: int, *, is_part: bool = False
    ) -> Iterator[tuple[int, int, Event]]:
        identity = f"{self.number}.{place}"
        for phase, at in (("b", start), ("e", max(start, end))):
            event = self._event(phase, span, self.rows.get(place, 0)) | {"id": identity}
            event["name"] = f"{prefix}{span.name}"
            if phase == "b":
                event["args"] = _arguments(span)
            # Of one time: what is around begins first, and ends last.
            is_inner = is_part if phase == "b" else not is_part
            yield at + self.shift, int(is_inner), event

    def _event(self, phase: str, span: Span, row: int) -> Event:
        return {
            "ph": phase,
            "name": f"{_PREFIXES.get(span.kind, '')}{span.name}",
            "cat": _CATEGORIES.get(span.kind, span.kind),
            "pid": self.number,
            "tid": row,
        }


def _lanes(spans: Sequence[Span], places: Iterable[int]) -> list[list[int]]:
    """Returns slices of one thread on as many rows as it takes, so that those of each lie within
    each other or apart."""
    lanes: list[list[int]] = [[]]
    open_until: list[list[int]] = [[]]
    for place in sorted(places, key=lambda each: (spans[each].start, -spans[each].end)):
        start, end = spans[place].start, max(spans[place].end, spans[place].start + 1)
        for lane, ends in zip(lanes, open_until, strict=True):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                lane.append(place)
                ends.append(end)
                break
        else:
            lanes.append([place])
            open_until.append([end])
    return lanes


def _flow_events(
    flows: Iterable[Flow], places: Sequence[_Process]
) -> Iterator[tuple[int, int, Event]]:
    """Yields both ends of each flow. One that would arrive before it left, by the error of the
    clocks, arrives when it leaves."""
    for number, (kind, begin, end) in enumerate(flows, 1):
        left = begin.at + places[begin.track].shift
        arrived = max(left, end.at + places[end.track].shift)
        for phase, at, point in (("s", left, begin), ("f", arrived, end)):
            event = _flow_end(phase, kind, number, point, places)
            yield at, 1 if phase == "s" else 2, event


def _flow_end(
    phase: str, kind: str, number: int, point: Point, places: Sequence[_Process]
) -> Event:
    process = places[point.track]
    event = {
        "ph": phase,
        "name": kind,
        "cat": "flow",
        "id": number,
        "pid": process.number,
        "tid": process.rows[point.span],
    }
    if phase == "f":
        event["bp"] = "e"
    return event


def _arguments(span: Span) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if span.worker:
        about["worker"] = span.worker
    if span.peer:
        about["peer"] = span.peer
    if span.number:
        about["number"] = span.number
    if span.sent or span.received:
        about |= {"sent_bytes": span.sent, "received_bytes": span.received}
    if span.has_failed:
        about["failed"] = True
    return about


def _name_of_thread(thread: ThreadReport | None, ident: int) -> str:
    if thread is None:
        return f"thread {ident} (has ended)"
    return thread.name or f"thread {thread.native_id}"
