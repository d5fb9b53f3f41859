"""How a group's operations are called where somebody looks on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from lockstitch.attach.values import CollectiveWait
from lockstitch.c10d import membership
from lockstitch.c10d.flight_recorder import Entry, FlightRecorder, GroupLabel
from lockstitch.c10d.membership import Membership

if TYPE_CHECKING:
    import pytest


class Session:
    rank = 1

    def in_flight(self, key: tuple[int, str]) -> Any:
        return None if key[1] == "done" else cast("Any", self)

    submitted_at = 5.0


def test_what_is_waited_for_is_told_as_the_program_calls_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = FlightRecorder(10)
    monkeypatch.setattr(membership, "RECORDER", recorder)
    session: Any = Session()
    label = GroupLabel(session, "0", (0, 1))
    group = Membership(session, label, cast("Any", None))
    group.submitted = 6
    wait = CollectiveWait("allreduce", "collectives", True, 3.0, (0,))
    assert group.in_its_words([wait]) == (wait,)  # nothing is recorded
    size = [torch.Size([2])]
    entry = Entry(label, 6, "all_reduce", False, size, [torch.float32], size, (0, ""), 5.0, 0.0)
    message = replace(entry, number=2, name="recv 1<-0", is_message=True)
    recorder.record(replace(entry, number=5, key=(0, "done")))
    recorder.record(replace(entry, key=(0, "collectives #0")))
    recorder.record(replace(message, key=(0, "0 to 1, tag 0 #0")))
    recorder.record(replace(entry, number=7, key=(0, "collectives #1")))
    wanted = CollectiveWait("", "collectives", False, 0.0, (1,), (0,))
    waits = [
        wait, wait, replace(wait, name="0 to 1, tag 0"),
        wanted, replace(wanted, name="1 to 0, tag 0"),
    ]  # fmt: skip
    assert [each.label for each in group.in_its_words(waits)] == [
        "all_reduce of float32 (2,), operation 6", "all_reduce of float32 (2,), operation 7",
        "recv 1<-0 of float32 (2,), message 2", "operation 7", "message 1 to 0, tag 0",
    ]  # fmt: skip
