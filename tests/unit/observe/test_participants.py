"""Who takes part in a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.attach.values import WorkerReport
from lockstitch.nn.pipelining.running import run_row
from lockstitch.observe.participants import function_in_words, participants_of
from lockstitch.rpc.worker_groups.sources import ask_source
from lockstitch.runtime.functions import name_of
from tests.unit.attach.cards import process
from tests.unit.observe.jobs import job

if TYPE_CHECKING:
    from collections.abc import Callable


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


@pytest.mark.parametrize("function", [ask_source, run_row])
def test_what_a_program_asks_for_by_functions_of_ours_is_told_in_words(
    function: Callable[..., object],
) -> None:
    assert function_in_words(name_of(function)) != name_of(function)
    assert function_in_words("train:step") == "train:step"
