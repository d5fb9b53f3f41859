"""What is under way: names, the end of a session, and stalls in the test's own time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives.pending_operations import PendingOperations
from lockstitch.collectives.request_cache import CachedRequest
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
def pending(clock: ManualClock) -> PendingOperations:
    return PendingOperations(3, clock, stall_warning_seconds=10, stall_failure_seconds=30)


def begin(pending: PendingOperations, name: str = "a", kind: Kind = Kind.ALLREDUCE) -> Handle[Any]:
    request = Request(kind, name, (torch.ones(2),), reduction=SUM)
    return pending.begin(request, CachedRequest(request, 0))


def test_name_is_in_flight_until_done(pending: PendingOperations) -> None:
    handle = begin(pending)
    with pytest.raises(ValueError, match="'a' is in flight on rank 3"):
        begin(pending)
    assert pending.find(0, "a") is handle
    pending.complete(handle, 1)
    assert not pending.is_in_flight((0, "a"))
    pending.fail(begin(pending), CollectiveError("x"))
    assert (pending.submitted, pending.completed, pending.failed) == (2, 1, 1)


def test_submission_that_no_backend_has_seen_is_withdrawn(pending: PendingOperations) -> None:
    begun, lost = begin(pending), begin(pending, "b")
    begun.is_begun = begun.request.is_awaited = True
    looked_after: list[None] = []
    other = Request(Kind.ALLREDUCE, "b", (torch.ones(2),), reduction=SUM)
    for request in (begun.request, begun.request, other, Request(Kind.BARRIER)):
        pending.withdraw(request, KeyboardInterrupt(), lambda: looked_after.append(None))
        assert pending.all() == [begun, lost]
    assert len(looked_after) == 1  # others may wait for what the backend has
    pending.withdraw(lost.request, KeyboardInterrupt(), pytest.fail)
    assert pending.all() == [begun]


def test_broken_session_fails_all_and_keeps_the_first_reason(pending: PendingOperations) -> None:
    handle = begin(pending)
    pending.break_off(CollectiveError("first"))
    pending.break_off(CollectiveError("second"))
    for attempt in (handle.result, pending.check, lambda: begin(pending, "b")):
        with pytest.raises(CollectiveError, match="first"):
            attempt()
    assert len(pending) == 0


def test_stall_is_reported_once_with_who_is_missing(
    pending: PendingOperations, clock: ManualClock
) -> None:
    seen: list[Stall] = []
    pending.observers.stall = seen.append
    begin(pending)
    begin(pending, "join", Kind.JOIN)
    for _ in range(4):
        pending.look_for_stalls(lambda _: (1, 2))
        clock.advance(5)
    assert [(stall.name, stall.missing_ranks) for stall in seen] == [("a", (1, 2))]
    assert seen[0].waited_seconds > 10


def test_stall_waits_for_the_answer_who_is_missing(
    pending: PendingOperations, clock: ManualClock
) -> None:
    seen: list[Stall] = []
    pending.observers.stall = seen.append
    begin(pending)
    clock.advance(11)
    pending.look_for_stalls(lambda _: None)
    assert seen == []
    clock.advance(2)
    pending.look_for_stalls(lambda _: (0,))
    assert len(seen) == 1


def test_stall_that_lasts_too_long_ends_the_session(
    pending: PendingOperations, clock: ManualClock
) -> None:
    handle = begin(pending)
    clock.advance(31)
    pending.look_for_stalls(lambda _: (1,))
    with pytest.raises(StalledError, match=r"'a' on rank 3 waited 31 s for rank 1"):
        handle.result()
    assert pending.is_broken
