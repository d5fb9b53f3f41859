"""How much may be on its way to one peer."""

from __future__ import annotations

import pytest
import torch

from lockstitch.errors import PeerDiedError, RpcTimeoutError
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.flow_control import FlowControl
from lockstitch.testing.clock import ManualClock
from tests.unit.runtime.stage import Background, Stage, wait_until
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere

LARGE = torch.zeros(1000)


def test_the_largest_of_all_can_be_sent_alone() -> None:
    flow_control = FlowControl(10)
    flow_control.add(100, int)
    assert not flow_control.fits(1)
    flow_control.remove(100)
    flow_control.add(6, int)
    assert flow_control.fits(4)
    assert not flow_control.fits(5)


def test_a_request_waits_until_those_before_it_are_answered() -> None:
    with Stage(options=AgentOptions(bytes_in_flight=LARGE.nbytes * 2)) as stage:
        futures = [stage.call_async(LARGE) for _ in range(2)]
        third = Background(stage.call, LARGE)
        small = stage.call_async("small")  # what holds no tensors is not held up
        calls = [stage.peer.receive_call() for _ in range(3)]
        assert third.is_running
        stage.peer.reply(calls[0], "done")
        stage.peer.reply(stage.peer.receive_call(), "third")
        assert third.result() == "third"
        for call in calls[1:]:
            stage.peer.reply(call, "done")
        assert [Background(each.wait).result() for each in (*futures, small)] == ["done"] * 3
        assert stage.agent.peers.channels()[-1].flow_control.bytes == 0


def test_its_own_time_and_the_peers_end_put_an_end_to_the_wait() -> None:
    clock = ManualClock()
    with Stage(clock=clock, options=AgentOptions(bytes_in_flight=1)) as stage:
        stage.call_async(LARGE)
        first = stage.peer.receive_call()
        late = Background(lambda: stage.call(LARGE, timeout=5))
        waiting = Background(stage.call, LARGE)
        wait_until(lambda: stage.agent.peers.channels()[-1].flow_control._waiting == 2)
        clock.advance(5)
        with pytest.raises(RpcTimeoutError):
            late.result()
        assert first.request
        stage.peer.vanish()
        with pytest.raises(PeerDiedError):
            waiting.result()


def test_small_calls_wait_too_where_very_many_are_unanswered() -> None:
    with Stage(options=AgentOptions(calls_in_flight=3)) as stage:
        futures = [stage.call_async(number) for number in range(3)]
        fourth = Background(stage.call, 3)
        calls = [stage.peer.receive_call() for _ in range(3)]
        nested = []
        stage.agent.spawn(lambda: nested.append(stage.call_async("from one that serves")))
        calls.append(stage.peer.receive_call())
        wait_until(lambda: nested)
        assert fourth.is_running
        assert stage.agent.outstanding == 4
        for call in calls:
            stage.peer.reply(call, "done")
        stage.peer.reply(stage.peer.receive_call(), "fourth")
        assert fourth.result() == "fourth"
        assert [Background(each.wait).result() for each in (*futures, *nested)] == ["done"] * 4


def test_waiting_for_fewer_calls_ends_with_its_time_and_with_the_peer() -> None:
    clock = ManualClock()
    with Stage(clock=clock, options=AgentOptions(calls_in_flight=1)) as stage:
        stage.call_async("first")
        assert stage.peer.receive_call().request == 1
        channel = stage.agent.peers.channels()[-1]
        waiters = set()
        look = channel._look
        channel._look = lambda pending, what: (waiters.add(pending), look(pending, what))
        late = Background(lambda: stage.call(timeout=5))
        waiting = Background(stage.call)
        wait_until(lambda: len(waiters) == 2)
        clock.advance(5)
        with pytest.raises(RpcTimeoutError):
            late.result()
        stage.peer.vanish()
        with pytest.raises(PeerDiedError):
            waiting.result()


def test_no_interrupt_keeps_all_others_out():
    def attempt(number: int) -> Interrupter:
        flow_control = FlowControl(100)
        with interrupted(number, "threading", "lockstitch.runtime.flow_control") as strike:
            flow_control.fits(1)
            flow_control.add(1, lambda: None)
            flow_control.remove(1)
        assert not flow_control._lock.locked(), strike.where
        return strike

    assert strike_everywhere(attempt) > 3
