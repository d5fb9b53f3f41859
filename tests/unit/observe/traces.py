"""Processes for tests, with what they have recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockstitch.attach.spans import Span, SpanRing, recording_of
from lockstitch.attach.values import WorkerReport
from tests.unit.attach.cards import process

if TYPE_CHECKING:
    from lockstitch.attach.values import ProcessReport


def span(kind: str, start: int, end: int, **changes: object) -> Span:
    """A span of worker0, by default one of thread 1; times in microseconds."""
    own = {"worker": "worker0", "thread": 1, "peer": "", "number": 0, "at": 0}
    about = {**own, "name": "m:f", "sent": 0, "received": 0, "has_failed": False, **changes}
    about["at"] *= 1000  # type: ignore[operator]
    return Span(kind=kind, start=start * 1000, end=end * 1000, **about)  # type: ignore[arg-type]


def recorded(number: int, *spans: Span, host: str = "host", dropped: int = 0) -> ProcessReport:
    """The report of worker `number`, which has recorded these."""
    ring = SpanRing(max(2, 2 * len(spans)))
    for each in spans:
        times = each.start / 1e9, each.end / 1e9
        rest = each.peer, each.number, each.at / 1e9, each.sent, each.received, each.has_failed
        ring.add(each.kind, each.name, each.worker, *times, *rest)
    recording = replace(recording_of(*ring.since(0), 0.0), dropped=dropped, epoch=0)
    worker = WorkerReport(f"worker{number}", number)
    told = process(10 + number, workers=(worker,), rank=str(number))
    return replace(told, host=host, recording=recording)
