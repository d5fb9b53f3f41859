from __future__ import annotations

from types import SimpleNamespace

import pytest

from lockstitch.ids import GlobalId, WorkerId
from lockstitch.runtime.served import Served
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


@pytest.fixture
def discarded() -> list[object]:
    return []


@pytest.fixture
def served(discarded) -> Served:
    return Served(lambda body, sender: discarded.append((body, sender)))


def begin(served: Served, *requests: SimpleNamespace) -> list[Hashable]:
    invocations = [Hashable(**vars(each)) for each in requests]
    for each in invocations:
        served.begin(each)  # type: ignore[arg-type]
    return invocations


def test_a_request_ends_once(served) -> None:
    (one,) = begin(served, request(is_parked=False))
    assert len(served) == 1
    served.end(one)
    served.end(one)
    assert (len(served), served.finished) == (0, 1)


def test_a_parked_request_whose_time_is_over_is_served_no_more(served) -> None:
    running, parked, other = begin(
        served,
        request(number=1, is_parked=False),
        request(number=2, is_parked=True),
        request(OTHER, number=2, is_parked=True),
    )
    served.cancel(CALLER, 1)
    served.cancel(CALLER, 2)
    assert set(served.list()) == {running, other}
    assert parked not in served.list()


def test_of_a_caller_that_is_gone_only_what_makes_a_value_goes_on(served) -> None:
    _parked, making, others = begin(
        served,
        request(number=1, is_parked=True),
        request(number=2, is_parked=True, makes=True),
        request(OTHER, number=1, is_parked=True),
    )
    served.drop(CALLER)
    assert set(served.list()) == {making, others}


def test_what_a_repeated_request_carries_is_given_back(served, discarded) -> None:
    repeated = request(is_parked=False)
    served.note_repeated(repeated)
    assert served.repeated == 1
    assert discarded == [(BODY, CALLER)]
