"""Who takes part in a job."""

from __future__ import annotations

from lockstitch.attach.values import WorkerReport
from lockstitch.observe.participants import participants_of
from tests.unit.attach.cards import process
from tests.unit.observe.jobs import job


def test_each_worker_of_a_process_takes_part_and_equal_names_are_told_apart() -> None:
    several = process(10, workers=(WorkerReport("worker0", 0), WorkerReport("worker1", 1)))
    assert [each.name for each in participants_of(job(several))] == ["worker0", "worker1"]
    twins = (process(11, rank="0"), process(12, rank="0"), process(13), process(14, names=("s",)))
    assert [each.name for each in participants_of(job(*twins))] == [
        "rank 0 (pid 11)",
        "rank 0 (pid 12)",
        "process 13",
        "s",
    ]
