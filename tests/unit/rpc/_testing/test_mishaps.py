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


class Road:
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
    road = Road(fail=["RREF_CHILD_ACCEPT"], delay={"PYTHON_CALL": 1.0})
    road.send(FETCH)
    assert road.arrived == [FETCH]


def test_a_control_message_is_lost_in_silence_as_often_as_was_said() -> None:
    road = Road(fail=["RREF_USER_DELETE"])
    first, second = ForksDeleted(1, 1, ((ID, ID, 0),)), ForksDeleted(2, 1, ((ID, ID, 0),))
    for message in (first, first, second, first, second, second):
        road.send(message)
    assert road.arrived == [first, second]


def test_repetitions_are_counted_for_each_receiver() -> None:
    road = Road(fail=["CLEANUP_AUTOGRAD_CONTEXT_REQ"], times=1)
    for to in (THERE, ELSEWHERE, THERE):
        road.send(ReleaseContext(5), to)
    assert len(road.arrived) == 1


def test_a_request_that_is_lost_fails_at_once_as_its_timeout_would_later() -> None:
    road = Road(fail=["SCRIPT_RREF_FETCH_CALL"])
    with pytest.raises(RpcTimeoutError, match="was lost on purpose") as caught:
        road.send(FETCH)
    assert isinstance(caught.value, ConnectionError)
    assert road.arrived == []


def test_a_delayed_message_is_sent_later_and_need_not_find_its_receiver() -> None:
    road = Road(delay={"RREF_CHILD_ACCEPT": 1.5})
    road.send(ChildAccept(ID))
    assert road.arrived == []
    [(seconds, send)] = road.later
    send()
    assert (seconds, road.arrived) == (1.5, [ChildAccept(ID)])

    def nobody(_message: Message) -> None:
        raise ConnectionError("gone")

    road._mishaps(THERE, ChildAccept(ID), nobody)
    road.later[1][1]()


def test_of_two_names_for_one_message_the_longer_delay_counts() -> None:
    road = Road(delay={"PYTHON_RREF_FETCH_CALL": 1.0, "SCRIPT_RREF_FETCH_CALL": 2.0})
    road.send(FETCH)
    assert road.later[0][0] == 2.0


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no message 'POSTCARD'"):
        Road(fail=["POSTCARD"])


def test_the_incumbents_retried_messages_are_all_known() -> None:
    assert MESSAGES.keys() >= {
        "RREF_FORK_REQUEST",
        "RREF_CHILD_ACCEPT",
        "RREF_USER_DELETE",
        "CLEANUP_AUTOGRAD_CONTEXT_REQ",
    }
