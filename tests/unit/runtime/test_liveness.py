"""Who has fallen silent, seen with a clock that stands still and peers that are played."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.errors import PeerDiedError, RpcTimeoutError
from lockstitch.ids import WorkerId
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.messages import Alive, ContextReleased, Heartbeat
from tests.unit.runtime.stage import Background, Caller, Stage, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUND = 5.0
PART = BOUND / 5
PEER = WorkerId(1, 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stage(clock: ManualClock) -> Iterator[Stage]:
    with Stage(clock=clock, options=AgentOptions(heartbeat_timeout=BOUND)) as stage:
        yield stage


def heartbeat(stage: Stage, clock: ManualClock) -> Heartbeat:
    """One part passes, and the worker asks its peer."""
    clock.wait_until_waiting()
    clock.advance(PART)
    message = stage.peer.receive()
    assert isinstance(message, Heartbeat)
    return message


def test_a_peer_that_somebody_waits_for_is_asked_until_it_is_silent_for_too_long(
    stage: Stage, clock: ManualClock
) -> None:
    future = stage.call_async("hello")
    stage.peer.receive_call()
    for _ in range(10):  # it answers, for much longer than the bound
        stage.peer.send(Alive(heartbeat(stage, clock).number))
        wait_until(lambda: not stage.agent.peers.channels()[-1]._is_asking)
    for _ in range(4):
        heartbeat(stage, clock)
    assert not future.done()
    clock.wait_until_waiting()
    clock.advance(PART)
    words = "'peer1' died: it has been silent for 5 s, on host beta$"
    with pytest.raises(PeerDiedError, match=words):
        Background(future.wait).result()
    with pytest.raises(PeerDiedError, match="silent"):
        stage.call("again")


def test_what_the_peer_says_otherwise_is_a_sign_of_life_too(
    stage: Stage, clock: ManualClock
) -> None:
    future = stage.call_async("long")
    call = stage.peer.receive_call()
    for number in range(10):
        heartbeat(stage, clock)
        short = stage.call_async(number)
        stage.peer.reply(stage.peer.receive_call(), number)
        assert Background(short.wait).result() == number
    stage.peer.reply(call, "done")
    assert Background(future.wait).result() == "done"


def test_when_our_own_time_stood_still_it_was_not_the_peer_who_was_silent(
    stage: Stage, clock: ManualClock
) -> None:
    future = stage.call_async("hello")
    call = stage.peer.receive_call()
    for _ in range(4):
        heartbeat(stage, clock)
    clock.wait_until_waiting()
    clock.advance(1000)  # this process was stopped
    assert isinstance(stage.peer.receive(), Heartbeat)
    for _ in range(3):
        heartbeat(stage, clock)
    stage.peer.reply(call, "done")
    assert Background(future.wait).result() == "done"


def test_nobody_is_asked_where_nothing_is_waited_for(stage: Stage, clock: ManualClock) -> None:
    future = stage.call_async("hello")
    stage.peer.reply(stage.peer.receive_call(), "done")
    assert Background(future.wait).result() == "done"
    for _ in range(20):
        clock.wait_until_waiting()
        clock.advance(PART)
    assert not stage.agent.liveness._watches
    stage.agent.add_concern(lambda: [PEER])  # it has been lent something
    for _ in range(3):
        heartbeat(stage, clock)


def test_a_peer_that_takes_in_nothing_is_lost_although_every_caller_has_given_up(
    stage: Stage, clock: ManualClock
) -> None:
    much = torch.zeros(1 << 19)  # more than lies in a connection before its sender blocks
    callers = [Background(lambda: stage.call(much, timeout=PART / 2)) for _ in range(2)]
    wait_until(lambda: stage.agent.outstanding == 2)
    clock.advance(PART / 2)
    for caller in callers:
        with pytest.raises(RpcTimeoutError):
            caller.result()
    for _ in range(6):
        clock.wait_until_waiting()
        clock.advance(PART)
    wait_until(lambda: stage.agent.is_lost(PEER))


def test_a_heartbeat_is_answered_to_whoever_asks(stage: Stage) -> None:
    caller = stage.caller()
    caller.send(Heartbeat(7))
    assert caller.receive() == Alive(7)


def test_one_who_was_given_up_is_refused_when_it_comes_back(
    stage: Stage, clock: ManualClock
) -> None:
    stage.caller()
    stage.agent.peers.cut_off(stage.peer.info, "it has been silent for 5 s")
    welcome = Caller(stage, stage.peer.info).receive_welcome()
    assert welcome is not None
    why = "it has been silent for 5 s, on host beta"
    assert welcome.refusal == f"it has given this worker up as dead: {why}"
    assert stage.agent.statistics().refused == 1


def test_whoever_wants_to_hear_of_a_peer_waits_for_the_answer_and_for_nothing_else(
    stage: Stage,
) -> None:
    channel = stage.agent.peers.channel(PEER)
    heard: list[str] = []
    stage.agent.handle(ContextReleased, lambda *_: None)
    stage.agent.liveness.when_heard(channel, lambda: heard.append("heard"))
    message = stage.peer.receive()
    assert isinstance(message, Heartbeat)
    stage.peer.send(ContextReleased(3))  # it may be on its way already, and says nothing
    stage.peer.send(Alive(message.number))
    wait_until(lambda: heard == ["heard"])


def test_nothing_is_hoped_of_a_connection_that_has_broken(stage: Stage) -> None:
    channel = stage.agent.peers.channel(PEER)
    channel.close()
    stage.agent.liveness.when_heard(channel, lambda: None)
    assert stage.agent.liveness._hopes == {}
