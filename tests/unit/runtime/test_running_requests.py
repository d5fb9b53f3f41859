from __future__ import annotations

from types import SimpleNamespace

import pytest

from lockstitch.ids import GlobalId, WorkerId
from lockstitch.runtime.running_requests import RunningRequests
from lockstitch.wire.messages import Call, Payload, RemoteCall

CALLER, OTHER = WorkerId(1, 0), WorkerId(2, 0)
BODY = Payload(0, b"", ())
SOME = GlobalId(1, 0, 0)


def request(caller: WorkerId = CALLER, number: int = 1, *, is_parked: bool, makes: bool = False):
    """An invocation, as far as it matters here."""
    message = (
        RemoteCall(number, 1, None, None, None, SOME, SOME, 0, BODY)
        if makes
        else Call(number, 1, None, None, None, BODY)
    )
    return SimpleNamespace(caller=caller, message=message, is_parked=is_parked)


class Hashable(SimpleNamespace):
    __hash__ = object.__hash__
    abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1


@pytest.fixture
def discarded() -> list[object]:
    return []


@pytest.fixture
def requests(discarded) -> RunningRequests:
    return RunningRequests(lambda body, sender: discarded.append((body, sender)))


def begin(requests: RunningRequests, *given: SimpleNamespace) -> list[Hashable]:
    invocations = [Hashable(**vars(each)) for each in given]
    for each in invocations:
        requests.begin(each)  # type: ignore[arg-type]
    return invocations


def test_a_request_ends_once(requests) -> None:
    (one,) = begin(requests, request(is_parked=False))
    assert len(requests) == 1
    requests.end(one)
    requests.end(one)
    assert (len(requests), requests.finished) == (0, 1)


def test_a_parked_request_whose_time_is_over_is_served_no_more(requests) -> None:
    running, parked, other = begin(
        requests,
        request(number=1, is_parked=False),
        request(number=2, is_parked=True),
        request(OTHER, number=2, is_parked=True),
    )
    requests.cancel(CALLER, 1)
    requests.cancel(CALLER, 2)
    assert set(requests.list()) == {running, other}
    assert parked not in requests.list()


def test_of_a_caller_that_is_gone_only_what_makes_a_value_goes_on(requests) -> None:
    _parked, making, others = begin(
        requests,
        request(number=1, is_parked=True),
        request(number=2, is_parked=True, makes=True),
        request(OTHER, number=1, is_parked=True),
    )
    requests.drop(CALLER)
    assert set(requests.list()) == {making, others}


def test_what_a_repeated_request_carries_is_given_back(requests, discarded) -> None:
    repeated = request(is_parked=False)
    requests.note_repeated(repeated)
    assert requests.repeated == 1
    assert discarded == [(BODY, CALLER)]
