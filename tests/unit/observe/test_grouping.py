"""Which processes are of one job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.attach.asking import Answers, Silence
from lockstitch.attach.outlines import outlines
from lockstitch.attach.values import GroupReport, LaunchedWorker
from lockstitch.observe.grouping import JobNotFoundError, find, job_of
from tests.unit.attach.cards import card, process


def pids(cards: list[object]) -> list[list[int]]:
    return sorted(sorted(c.pid for c in each.cards) for each in outlines(cards))  # type: ignore


@given(
    st.lists(st.sets(st.sampled_from("abcdef"), max_size=3), min_size=1, max_size=8),
)
def test_processes_with_a_key_in_common_are_joined_directly_or_by_others(
    keys: list[set[str]],
) -> None:
    cards = [card(10 + number, keys=tuple(its)) for number, its in enumerate(keys)]
    expected = [{number} for number in range(len(keys))]
    for key in "abcdef":
        joined = [part for part in expected if any(key in keys[number] for number in part)]
        if joined:
            expected = [part for part in expected if part not in joined]
            expected.append(set().union(*joined))
    assert pids(cards) == sorted(sorted(10 + n for n in part) for part in expected)  # type: ignore


def test_a_forked_child_belongs_to_its_parent_and_a_job_within_a_job_does_not() -> None:
    worker, slot = card(10, job="a/1"), card(11, job="a/1", parent=10)
    inner = card(12, job="b/1", parent=10)
    assert pids([worker, slot, inner]) == [[10, 11], [12]]


def test_a_job_is_found_by_its_name_or_by_a_process() -> None:
    launcher = card(5, kind="launcher", job="train/1", keys=("job train/1",))
    workers = [
        card(pid, job="train/1", keys=("job train/1",), parent=5, rank=str(pid - 10))
        for pid in (11, 10)
    ]
    other = card(20, parent=6, program="serve")
    known = outlines([*workers, other, launcher])
    for wanted in ("train", "10", "11", "5"):
        assert find(known, wanted).pid == 5
    for wanted in ("serve", "20", "6"):
        assert find(known, wanted).pid == 20
    with pytest.raises(JobNotFoundError, match=r"several jobs run.*train \(pid 5\)"):
        find(known, None)
    with pytest.raises(JobNotFoundError, match="no job is called nothing"):
        find(known, "nothing")
    with pytest.raises(JobNotFoundError, match="no process of this user"):
        find([], "train")
    twice = outlines([card(3, program="train"), card(4, program="train")])
    with pytest.raises(JobNotFoundError, match="several jobs are called train"):
        find(twice, "train")
    assert find(twice, "4").pid == 4


def test_a_job_is_told_by_rank_with_its_launcher_and_its_state() -> None:
    told = [process(11, rank="1"), process(10, rank="0"), process(5, kind="launcher")]
    (outline,) = outlines([replace(each.card, keys=("k",)) for each in told])
    job = job_of(outline, Answers(told, []))
    assert [each.card.rank for each in job.processes] == ["0", "1"]
    assert job.launcher is not None
    assert job.state == "begins"
    told[0] = process(11, rank="1", groups=(GroupReport("hvd", "", 1, 2),))
    assert job_of(outline, Answers(told, [])).state == "runs"
    silent = [Silence(card(12, rank="2"), "it did not answer", None)]
    assert job_of(outline, Answers(told, silent)).state == "does not answer"
    told[2] = replace(told[2], launched=(LaunchedWorker(1, 11, "", 1.0, 2.0, "exit code 1"),))
    assert job_of(outline, Answers(told, [])).state == "ends"
