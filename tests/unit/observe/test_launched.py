"""Workers as only their launcher knows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstitch.attach.values import LaunchedWorker
from lockstitch.observe.grouping import Job
from lockstitch.observe.launched import has_ended_well, launched_in_words, unseen_workers
from tests.unit.attach.cards import process
from tests.unit.observe.jobs import idle, job


@pytest.mark.parametrize(
    ("worker", "words", "is_well"),
    [
        (
            LaunchedWorker(2, 20, "", 1.0),
            "cannot be asked: it has not begun, or is about to end",
            False,
        ),
        (LaunchedWorker(2, 20, "beta", 1.0), "runs on host beta: ask there", False),
        (LaunchedWorker(2, 20, "", 1.0, 3.0, "exit code 0"), "exit code 0", True),
        (LaunchedWorker(2, 20, "b", 1.0, 3.0, "exit code 0 on host b"), "exit code 0 on host b",
         True),
        (LaunchedWorker(2, 20, "", 1.0, 3.0, "exit code 1"), "exit code 1", False),
        (LaunchedWorker(2, 20, "", 1.0, 3.0, "killed by SIGKILL"), "killed by SIGKILL", False),
    ],
)  # fmt: skip
def test_how_a_worker_stands_that_tells_nothing(
    worker: LaunchedWorker, words: str, is_well: bool
) -> None:
    assert launched_in_words(worker) == words
    assert has_ended_well(worker) == is_well


def test_those_that_have_told_something_are_seen() -> None:
    launched = (LaunchedWorker(0, 10, "", 1.0), LaunchedWorker(1, 11, "", 1.0))
    launcher = replace(process(9, kind="launcher"), launched=launched)
    assert unseen_workers(Job("train", 9, launcher, (idle(0),), ())) == [launched[1]]
    assert unseen_workers(job(idle(0))) == []
