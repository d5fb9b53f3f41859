"""A track has the names of the workers of its process."""

from __future__ import annotations

from dataclasses import replace

from lockstitch.attach.values import WorkerReport
from lockstitch.observe.participants import participants_of
from lockstitch.observe.tracks import track_of
from tests.unit.observe.jobs import job
from tests.unit.observe.traces import recorded, span


def test_a_process_with_two_workers_is_one_track() -> None:
    report = recorded(0, span("call", 1, 2), dropped=4)
    both = replace(report, workers=(*report.workers, WorkerReport("worker9", 9)))
    track = track_of(both, participants_of(job(both)))
    assert track.name == "worker0, worker9"
    assert (track.pid, track.rank, track.dropped) == (10, "0", 4)
    assert track.spans[0].name == "m:f"
