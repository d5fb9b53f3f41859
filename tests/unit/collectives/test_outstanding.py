"""What is under way: names, the end of a session, and stalls in the test's own time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives.forms import Form
from lockstitch.collectives.outstanding import Outstanding
from lockstitch.collectives.requests import SUM, Kind, Request
from lockstitch.errors import CollectiveError, StalledError
from lockstitch.testing.clock import ManualClock

if TYPE_CHECKING:
    from lockstitch.collectives.events import Stall
    from lockstitch.collectives.handles import Handle


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def outstanding(clock: ManualClock) -> Outstanding:
    return Outstanding(3, clock, stall_warning_seconds=10, stall_failure_seconds=30)


def begin(outstanding: Outstanding, name: str = "a", kind: Kind = Kind.ALLREDUCE) -> Handle[Any]:
    request = Request(kind, name, (torch.ones(2),), reduction=SUM)
    return outstanding.begin(request, Form(request, 0))


def test_name_is_in_flight_until_done(outstanding: Outstanding) -> None:
    handle = begin(outstanding)
    with pytest.raises(ValueError, match="'a' is in flight on rank 3"):
        begin(outstanding)
    assert outstanding.find(0, "a") is handle
    outstanding.complete(handle, 1)
    assert not outstanding.is_in_flight((0, "a"))
    outstanding.fail(begin(outstanding), CollectiveError("x"))
    assert (outstanding.submitted, outstanding.completed, outstanding.failed) == (2, 1, 1)


def test_broken_session_fails_all_and_keeps_the_first_reason(outstanding: Outstanding) -> None:
    handle = begin(outstanding)
    outstanding.break_off(CollectiveError("first"))
    outstanding.break_off(CollectiveError("second"))
    for attempt in (handle.result, outstanding.check, lambda: begin(outstanding, "b")):
        with pytest.raises(CollectiveError, match="first"):
            attempt()
    assert len(outstanding) == 0


def test_stall_is_reported_once_with_who_is_missing(
    outstanding: Outstanding, clock: ManualClock
) -> None:
    seen: list[Stall] = []
    outstanding.observers.stall = seen.append
    begin(outstanding)
    begin(outstanding, "join", Kind.JOIN)
    for _ in range(4):
        outstanding.look_for_stalls(lambda _: (1, 2))
        clock.advance(5)
    assert [(stall.name, stall.missing_ranks) for stall in seen] == [("a", (1, 2))]
    assert seen[0].waited_seconds > 10


def test_stall_waits_for_the_answer_who_is_missing(
    outstanding: Outstanding, clock: ManualClock
) -> None:
    seen: list[Stall] = []
    outstanding.observers.stall = seen.append
    begin(outstanding)
    clock.advance(11)
    outstanding.look_for_stalls(lambda _: None)
    assert seen == []
    clock.advance(2)
    outstanding.look_for_stalls(lambda _: (0,))
    assert len(seen) == 1


def test_stall_that_lasts_too_long_ends_the_session(
    outstanding: Outstanding, clock: ManualClock
) -> None:
    handle = begin(outstanding)
    clock.advance(31)
    outstanding.look_for_stalls(lambda _: (1,))
    with pytest.raises(StalledError, match=r"'a' on rank 3 waited 31 s for ranks \[1\]"):
        handle.result()
    assert outstanding.is_broken
