"""Mishaps lose and delay exactly the messages that were named."""

from __future__ import annotations

import pytest

from lockstitch.errors import RpcTimeoutError
from lockstitch.ids import GlobalId, WorkerId
from lockstitch.rpc._testing.mishaps import MESSAGES, Mishaps
from lockstitch.wire.messages import (
    ChildAccept,
    Fetch,
    ForksDeleted,
    Message,
    ReleaseContext,
)

THERE, ELSEWHERE = WorkerId(1, 0), WorkerId(2, 0)
ID = GlobalId(0, 0, 7)
FETCH = Fetch(1, ID, ID, 0, None, None)


class Route:
    """Where messages go, and when."""

    def __init__(self, fail=(), delay=None, times: int = 2) -> None:
        self.later: list[tuple[float, object]] = []
        self.arrived: list[Message] = []
        self._mishaps = Mishaps(
            lambda seconds, task: self.later.append((seconds, task)), fail, delay or {}, times
        )

    def send(self, message: Message, to: WorkerId = THERE) -> None:
        self._mishaps(to, message, self.arrived.append)


def test_other_messages_pass() -> None:
    route = Route(fail=["RREF_CHILD_ACCEPT"], delay={"PYTHON_CALL": 1.0})
    route.send(FETCH)
    assert route.arrived == [FETCH]


def test_a_control_message_is_lost_in_silence_as_often_as_was_said() -> None:
    route = Route(fail=["RREF_USER_DELETE"])
    first, second = ForksDeleted(1, 1, ((ID, ID, 0),)), ForksDeleted(2, 1, ((ID, ID, 0),))
    for message in (first, first, second, first, second, second):
        route.send(message)
    assert route.arrived == [first, second]


def test_repetitions_are_counted_for_each_receiver() -> None:
    route = Route(fail=["CLEANUP_AUTOGRAD_CONTEXT_REQ"], times=1)
    for to in (THERE, ELSEWHERE, THERE):
        route.send(ReleaseContext(5), to)
    assert len(route.arrived) == 1


def test_a_request_that_is_lost_fails_at_once_as_its_timeout_would_later() -> None:
    route = Route(fail=["SCRIPT_RREF_FETCH_CALL"])
    with pytest.raises(RpcTimeoutError, match="was lost on purpose") as caught:
        route.send(FETCH)
    assert isinstance(caught.value, ConnectionError)
    assert route.arrived == []


def test_a_delayed_message_is_sent_later_and_need_not_find_its_receiver() -> None:
    route = Route(delay={"RREF_CHILD_ACCEPT": 1.5})
    route.send(ChildAccept(ID))
    assert route.arrived == []
    [(seconds, send)] = route.later
    send()
    assert (seconds, route.arrived) == (1.5, [ChildAccept(ID)])

    def nobody(_message: Message) -> None:
        raise ConnectionError("gone")

    route._mishaps(THERE, ChildAccept(ID), nobody)
    route.later[1][1]()


def test_of_two_names_for_one_message_the_longer_delay_counts() -> None:
    route = Route(delay={"PYTHON_RREF_FETCH_CALL": 1.0, "SCRIPT_RREF_FETCH_CALL": 2.0})
    route.send(FETCH)
    assert route.later[0][0] == 2.0


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no message 'POSTCARD'"):
        Route(fail=["POSTCARD"])


def test_the_incumbents_retried_messages_are_all_known() -> None:
    assert MESSAGES.keys() >= {
        "RREF_FORK_REQUEST",
        "RREF_CHILD_ACCEPT",
        "RREF_USER_DELETE",
        "CLEANUP_AUTOGRAD_CONTEXT_REQ",
    }
