"""Handles: completed once, waited for by anybody."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives.handles import Handle
from lockstitch.collectives.request_cache import CachedRequest
from lockstitch.collectives.requests import SUM, Kind, Request
from lockstitch.errors import CollectiveError


@pytest.fixture
def handle() -> Handle[int]:
    request = Request(Kind.ALLREDUCE, "a", (torch.ones(1),), reduction=SUM)
    return Handle(request, CachedRequest(request, 0))


def test_result_is_given_as_often_as_asked(handle: Handle[int]) -> None:
    handle.complete(3)
    assert (handle.result(), handle.result(), handle.is_done) == (3, 3, True)


def test_error_is_raised_each_time_as_a_copy(handle: Handle[int]) -> None:
    error = CollectiveError("no")
    handle.fail(error)
    handle.fail(CollectiveError("the first stays"))
    for _ in range(2):
        with pytest.raises(CollectiveError, match="no") as caught:
            handle.result()
        assert caught.value is not error


def test_result_before_its_time_is_an_error(handle: Handle[int]) -> None:
    with pytest.raises(RuntimeError, match="wait for it first"):
        handle.result()


def test_signal_is_set_by_completion_also_before_anybody_waits(handle: Handle[int]) -> None:
    handle.complete(1)
    assert handle.signal().is_set()


def test_nudge_wakes_and_rearm_waits_again(handle: Handle[int]) -> None:
    signal = handle.signal()
    handle.nudge()
    assert signal.is_set()
    handle.rearm()
    assert not signal.is_set()
    handle.complete(1)
    handle.rearm()
    assert signal.is_set()


def test_repr_tells_the_state(handle: Handle[int]) -> None:
    assert repr(handle) == "<Handle of allreduce 'a' · under way>"
    handle.fail(CollectiveError("x"))
    assert "failed" in repr(handle)


def test_waiting_tells_whether_it_is_done(handle: Handle[int]) -> None:
    assert not handle.wait(0.0)
    handle.complete(1)
    assert handle.wait(60.0)
