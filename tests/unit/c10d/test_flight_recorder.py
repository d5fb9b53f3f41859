"""The last operations of a process."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lockstitch.c10d.flight_recorder import Entry, FlightRecorder, GroupLabel, recorder_size


class Handle:
    submitted_at = 5.0


class Session:
    rank = 1
    flying: tuple[int, str] = (0, "a")

    def in_flight(self, key: tuple[int, str]) -> Handle | None:
        return Handle() if key == self.flying else None


def label(session: Any, ranks: tuple[int, ...] = (4, 7)) -> GroupLabel:
    made = GroupLabel(session, "12", ranks)
    made.description = "mesh_dp"
    return made


def entry(group: GroupLabel, number: int = 1, key: str = "a", at: float = 5.0) -> Entry:
    shapes, dtypes = [torch.Size([2, 3])], [torch.float32]
    return Entry(group, number, "all_reduce", False, shapes, dtypes, shapes, (0, key), at, 0.0)


def test_operation_tells_what_it_is_and_in_which_group() -> None:
    session = Session()
    group = label(session)
    told = "all_reduce of float32 (2, 3), operation 3 of group '12' (mesh_dp) of ranks 4, 7"
    assert str(entry(group, 3)) == told
    assert group.global_rank == 7
    assert str(label(session, (0, 1))) == "group '12' (mesh_dp)"


def test_operation_is_under_way_while_the_session_has_that_very_one() -> None:
    session = Session()
    group = label(session)
    assert entry(group).state == "under way"
    assert entry(group, at=4.0).state == "done"  # the name has been used again since
    assert entry(group, key="b").state == "done"
    failed = entry(group)
    failed.has_failed = True
    assert failed.state == "failed"
    del session
    assert not entry(group).is_under_way


def test_what_has_failed_is_known_also_where_nobody_was_told() -> None:
    group = label(Session())
    for number in range(3000):  # of which only the latest are kept
        handle: Any = SimpleNamespace(key=(0, "a"), submitted_at=float(number))
        group.note_failure(handle, ValueError())
    assert [entry(group, at=at).state for at in (0.0, 2999.0, 3000.0)] == ["done", "failed", "done"]


def test_a_repetition_is_told_as_an_entry_and_becomes_one() -> None:
    session = Session()
    first = entry(label(session), 3, at=1.0)
    recorder = FlightRecorder(2)
    for number in (4, 5, 6):
        recorder.record((first, number, 1.0 + number))
    assert [(each.number, each.submitted_at) for each in recorder.entries()] == [(5, 6.0), (6, 7.0)]
    first.has_failed = True
    kept = recorder.as_entry((first, 5, 6.0))
    assert not kept.has_failed
    kept.has_failed = True
    assert [(each.number, each.has_failed) for each in recorder.entries()] == [
        (6, False), (5, True),
    ]  # fmt: skip
    assert recorder.as_entry((first, 4, 5.0)).number == 4  # which is not kept any more
    assert len(recorder.entries()) == 2


def test_what_another_thread_records_meanwhile_is_no_error() -> None:
    session = Session()
    first = entry(label(session), 3)
    recorder = FlightRecorder(9)

    class Other:
        """What takes a while to be compared."""

        def __eq__(self, other: object) -> bool:
            recorder.record(first)
            return False

        __hash__ = None  # type: ignore[assignment]

    other: Any = Other()
    recorder.record(other)
    recorder.record((first, 4, 2.0))
    assert recorder.as_entry((first, 4, 2.0)).number == 4


def test_only_the_last_are_kept_and_told_with_their_age(caplog: pytest.LogCaptureFixture) -> None:
    session = Session()
    group = label(session)
    recorder = FlightRecorder(2, now=lambda: 7.0)
    for number in range(1, 4):
        recorder.record(entry(group, number, key="b"))
    assert [each.number for each in recorder.entries()] == [2, 3]
    assert recorder.last_of(group) is recorder.entries()[-1]
    assert recorder.last_of(label(session)) is None
    with caplog.at_level(logging.ERROR):
        recorder.log(group, RuntimeError("rank 4 died"))
    assert "on rank 7 group '12' (mesh_dp) of ranks 4, 7 has ended: rank 4 died" in caplog.text
    assert "operation 2 of group '12' (mesh_dp) of ranks 4, 7: done, 2.0 s ago" in caplog.text


def test_each_group_fails_once() -> None:
    session = Session()
    group, other = label(session), label(session)
    recorder = FlightRecorder(2)
    assert [recorder.is_first_failure(each) for each in (group, group, other)] == [
        True,
        False,
        True,
    ]


def test_size_is_given_by_the_variables_of_torch() -> None:
    assert recorder_size({}) == 2000
    assert recorder_size({"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}) == 7
    both = {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}
    assert recorder_size(both) == 0
    assert not FlightRecorder(0).is_on
    with pytest.raises(ValueError, match="TORCH_FR_BUFFER_SIZE='many' must be a number"):
        recorder_size({"TORCH_FR_BUFFER_SIZE": "many"})
