"""A strict reader of the Chrome trace event format, which knows nothing of Lockstitch.

What it demands: each event has what its phase needs; events with a time are in its order; slices of
a row lie within each other or apart; each `b` has its `e`, in the order of a stack; each flow's `s`
has exactly one `f` of the same name, category and number, which is not earlier; and both ends lie
within a slice of their row.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
Rows = dict[tuple[int, int], list[Event]]
"""The slices of each row, by process and thread."""
_NEEDS = {
    "M": ("name", "args"),
    "X": ("name", "cat", "ts", "dur"),
    "b": ("name", "cat", "ts", "id"),
    "e": ("name", "cat", "ts", "id"),
    "s": ("name", "cat", "ts", "id"),
    "f": ("name", "cat", "ts", "id"),
    "i": ("name", "ts", "s"),
}
_SLACK_US = 1e-4  # times are written as floating-point numbers


class Arrow(NamedTuple):
    """A flow, with the slices that it leads from and to."""

    name: str
    begin: Event
    end: Event


class ReadTrace(NamedTuple):
    slices: list[Event]
    asynchronous: list[tuple[Event, Event]]
    arrows: list[Arrow]
    names: dict[int, str]
    """Those of processes."""
    about: dict[str, Any]


def read_trace(path: Path) -> ReadTrace:
    """Reads a file; raises `AssertionError` for what the format forbids."""
    document = json.loads(path.read_text())
    events: list[Event] = document["traceEvents"]
    for event in events:
        needed = ("ph", "pid", "tid", *_NEEDS[event["ph"]])
        assert all(key in event for key in needed), event
        assert all(isinstance(event[key], int) for key in ("pid", "tid")), event
        assert event.get("dur", 1) > 0, event
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    assert not times or times[0] >= 0
    rows: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
    for slices in rows.values():
        _check_nesting(slices)
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {event["pid"] for event in events} <= named.keys()
    return ReadTrace(
        [event for event in events if event["ph"] == "X"],
        _pairs_of(events),
        _arrows_of(events, rows),
        named,
        document["otherData"],
    )


def _check_nesting(slices: list[Event]) -> None:
    open_until: list[float] = []
    for each in slices:
        start, end = each["ts"], each["ts"] + each["dur"]
        while open_until and open_until[-1] <= start + _SLACK_US:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + _SLACK_US, each
        open_until.append(end)


def _pairs_of(events: list[Event]) -> list[tuple[Event, Event]]:
    stacks: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
    pairs = []
    for event in events:
        if event["ph"] in "be":
            stack = stacks[event["pid"], event["cat"], event["id"]]
            if event["ph"] == "b":
                stack.append(event)
            else:
                begin = stack.pop()
                assert begin["name"] == event["name"], event
                pairs.append((begin, event))
    assert not any(stacks.values())
    return pairs


def _arrows_of(events: list[Event], rows: Rows) -> list[Arrow]:
    begun: dict[tuple[object, ...], Event] = {}
    starts = {row: [each["ts"] for each in slices] for row, slices in rows.items()}
    arrows = []
    for event in events:
        key = (event.get("cat"), event["name"], event.get("id"))
        if event["ph"] == "s":
            assert key not in begun, event
            begun[key] = event
        elif event["ph"] == "f":
            assert event["bp"] == "e", event
            begin = begun.pop(key)
            assert begin["ts"] <= event["ts"], event
            ends = [_slice_around(each, rows, starts) for each in (begin, event)]
            arrows.append(Arrow(event["name"], *ends))
    assert not begun
    return arrows


def _slice_around(
    event: Event,
    rows: dict[tuple[int, int], list[Event]],
    starts: dict[tuple[int, int], list[float]],
) -> Event:
    """The innermost slice of the event's row that it lies in."""
    row = (event["pid"], event["tid"])
    at = event["ts"]
    for place in range(bisect_right(starts[row], at + _SLACK_US) - 1, -1, -1):
        each = rows[row][place]
        if at < each["ts"] + each["dur"] + _SLACK_US:
            return each
    raise AssertionError(f"no slice lies around {event}")
