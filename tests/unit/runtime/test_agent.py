"""The agent as other floors see it: plugging in, timers, tasks, values, rest, and the end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.errors import NotInitializedError, PeerDiedError
from lockstitch.ids import WorkerId
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.messages import ChildNoted, Fetch, Message
from tests.unit.runtime.stage import Background, Stage, wait_until

if TYPE_CHECKING:
    from lockstitch.runtime.invocation import Invocation

ME, PEER = WorkerId(0, 0), WorkerId(1, 0)
NOTED = ChildNoted((0, 0, 1))  # type: ignore[arg-type]


def test_control_messages_are_sent_and_handled_with_their_sender() -> None:
    with Stage() as stage:
        handled: list[Any] = []
        stage.agent.handle(ChildNoted, lambda sender, message: handled.append((sender, message)))
        stage.caller().send(NOTED)
        wait_until(lambda: handled)
        stage.agent.send(PEER, NOTED)
        assert stage.peer.receive() == NOTED
        assert handled == [(PEER, NOTED)]


def test_other_requests_are_served_by_their_server_and_answered() -> None:
    fetch = Fetch(1, (1, 0, 0), (1, 0, 1), 7, None, None)  # type: ignore[arg-type]
    with Stage() as stage:

        def serve(invocation: Invocation) -> None:
            assert stage.agent.thread_pool.owns_current_thread()
            message: Any = invocation.message
            if message.serial:
                invocation.reply([message.serial])
            else:
                invocation.fail(KeyError("none"))

        stage.agent.serve(Fetch, serve)
        caller = stage.caller()
        caller.send(fetch)
        assert caller.answer() == [7]
        caller.send(Fetch(2, (1, 0, 0), (1, 0, 1), 0, None, None))  # type: ignore[arg-type]
        assert isinstance(caller.answer(), KeyError)

        def build(number: int, travels: float | None) -> Message:
            return Fetch(number, (1, 0, 0), (1, 0, 1), 9, travels, None)  # type: ignore[arg-type]

        assert stage.agent.outgoing.request(ME, build, 5).wait() == [9]


def test_spawned_tasks_run_on_the_pool_and_failing_ones_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Stage() as stage:
        ran = threading.Event()
        stage.agent.spawn(lambda: 1 / 0)
        stage.agent.spawn(
            lambda: ran.set() if stage.agent.thread_pool.owns_current_thread() else None
        )
        assert ran.wait(10)
        wait_until(lambda: stage.agent.core.failures)
        assert "ZeroDivisionError" in stage.agent.statistics().failures[0]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_statistics_are_a_picture_of_the_moment() -> None:
    with Stage() as stage:
        call = Background(stage.call)
        request = stage.peer.receive_call()
        during = stage.agent.statistics()
        assert (during.outstanding, during.served, during.finished, during.backlog) == (1, 0, 0, 0)
        stage.peer.reply(request, "answer")
        call.result()
        caller = stage.caller(2)
        caller.send(caller.call("builtins:abs", -1))
        caller.answer()
        wait_until(lambda: stage.agent.statistics().finished == 1)
        after = stage.agent.statistics()
        assert (after.outstanding, after.served, after.backlog, after.failures) == (0, 0, 0, ())
        assert after.threads >= 1
        assert during.outstanding == 1


def test_delayed_tasks_follow_the_workers_clock() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        ran = threading.Event()
        stage.agent.call_later(30, ran.set)
        clock.wait_until_waiting()
        assert not ran.is_set()
        clock.advance(30)
        assert ran.wait(10)


def test_agent_rests_when_nothing_is_left_to_do() -> None:
    with Stage() as stage:
        wait_until(stage.agent.is_at_rest)
        before = stage.agent.activity
        future = stage.call_async()
        assert not stage.agent.is_at_rest()
        stage.peer.reply(stage.peer.receive_call(), 1)
        future.wait()
        wait_until(stage.agent.is_at_rest)
        stage.agent.outgoing.call(ME, abs, (-1,))
        assert stage.agent.activity == before + 3


def test_filter_stands_in_the_way_of_requests_and_control_messages() -> None:
    with Stage() as stage:
        seen: list[str] = []

        def only_note(to: WorkerId, message: Message, send: Any) -> None:
            seen.append(type(message).__name__)
            if type(message) is ChildNoted:
                send(message)

        stage.agent.core.send_filter = only_note
        lost = stage.call_async()
        stage.agent.send(PEER, NOTED)
        assert stage.peer.receive() == NOTED
        assert seen == ["Call", "ChildNoted"]
        assert not lost.done()


def test_text_tells_what_goes_on() -> None:
    with Stage() as stage:
        stage.call_async()
        stage.peer.receive_call()
        assert repr(stage.agent) == "<Agent 'worker' · 1 peers · 1 calls pending · 0 served>"


def test_close_runs_what_was_asked_for_while_connections_still_stand() -> None:
    with Stage() as stage:
        stage.agent.peers.channel(PEER)
        stage.agent.on_close(lambda: stage.agent.send(PEER, NOTED))
        stage.worker.close()
        assert stage.peer.receive() == NOTED
        assert stage.worker.close() == []
        with pytest.raises((NotInitializedError, PeerDiedError)):
            stage.agent.send(PEER, NOTED)


def test_each_step_of_closing_may_take_half_of_what_is_left() -> None:
    remaining = []
    with Stage() as stage:
        agent = stage.agent
        assert agent.remaining_seconds(7.0) == 7.0
        agent.on_close(
            lambda: remaining.extend([agent.remaining_seconds(700.0), agent.remaining_seconds(7.0)])
        )
        stage.worker.close(within_seconds=100.0)
        agent.core._ends_at = 0.0  # long ago
        assert 0 < agent.remaining_seconds(7.0) < 0.1
    assert remaining[0] <= 50.0
    assert remaining[1] == 7.0


def test_close_returns_in_time_and_names_what_still_runs() -> None:
    stage = Stage()
    stage.worker.start()
    entered, gate = threading.Event(), threading.Event()
    stage.agent.spawn(lambda: (entered.set(), gate.wait(10)))
    assert entered.wait(10)
    remaining = stage.worker.close(timeout_seconds=0.05)
    assert [name.startswith("worker-") for name in remaining] == [True]
    gate.set()
