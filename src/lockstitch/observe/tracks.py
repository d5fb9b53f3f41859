"""What one process has recorded for a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.attach.spans import Span, spans_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.attach.values import ProcessReport, ThreadReport
    from lockstitch.observe.participants import Participant


@dataclass(frozen=True, slots=True)
class Track:
    """What a process has recorded. `began_at` and `ended_at`, as the times of its spans: in
    nanoseconds of its host's monotonic clock. `dropped`: how many older spans it had to push
    out."""

    name: str
    rank: str
    pid: int
    host: str
    spans: tuple[Span, ...]
    dropped: int
    began_at: int
    ended_at: int
    threads: tuple[ThreadReport, ...]


def track_of(report: ProcessReport, participants: Sequence[Participant]) -> Track:
    """Returns what a process has recorded. Raises `ValueError` where that is no recording."""
    recording, card = report.recording, report.card
    assert recording is not None
    names = [each.name for each in participants if each.report is report]
    return Track(
        ", ".join(dict.fromkeys(names)),
        card.rank,
        card.pid,
        report.host,
        tuple(spans_of(recording)),
        recording.dropped,
        recording.began_at,
        recording.ended_at,
        report.threads,
    )
