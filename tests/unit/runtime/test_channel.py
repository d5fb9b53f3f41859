"""Answers find whoever waits for them, and futures that nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.errors import LocalProtocolError, PeerDiedError, RpcTimeoutError
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.messages import Cancel
from tests.unit.runtime.stage import Background, Stage, wait_until

if TYPE_CHECKING:
    from lockstitch.wire.messages import Message


def test_failure_is_raised_with_its_own_type() -> None:
    with Stage() as stage:
        call = Background(stage.call)
        stage.peer.fail(stage.peer.receive_call(), KeyError("gone"))
        with pytest.raises(KeyError, match="gone"):
            call.result()


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]], ids=str)
def test_replies_in_any_order_reach_their_callers(order: list[int]) -> None:
    with Stage() as stage:
        callers, calls = [], []
        for number in range(5):  # the first reads, the others follow
            callers.append(Background(stage.call, number))
            calls.append(stage.peer.receive_call())
        for number in order:
            stage.peer.reply(calls[number], number)
            assert callers[number].result() == number


def test_late_reply_is_ignored() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        late = Background(lambda: stage.call(timeout=5))
        late_call = stage.peer.receive_call()
        clock.wait_until_waiting()
        clock.advance(5)
        with pytest.raises(RpcTimeoutError):
            late.result()
        stage.peer.reply(late_call, "too late")
        stage.peer.reply(late_call, "and twice")
        following = Background(stage.call)
        stage.peer.reply(stage.peer.receive_call(), "in time")
        assert following.result() == "in time"


def test_one_message_that_cannot_be_sent_keeps_the_callee_from_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Stage() as stage:
        futures = [stage.call_async(number) for number in range(3)]
        calls = [stage.peer.receive_call() for _ in futures]
        channel = stage.agent.peers.channels()[-1]
        post = channel.post

        def refuse_first(message: Message, *rest: Any) -> None:
            if message.request == calls[0].request:  # type: ignore[attr-defined]
                raise LocalProtocolError("it is too long")
            post(message, *rest)

        monkeypatch.setattr(channel, "post", refuse_first)
        with channel._cancelling:  # all of them are told by one thread, later
            for future in futures:
                future.cancel()
        channel._cancel()
        told = [stage.peer.receive() for _ in futures[1:]]
        assert told == [Cancel(call.request) for call in calls[1:]]


def test_an_answer_that_another_thread_reads_while_it_is_given_up_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Stage() as stage:
        caller, call = Background(stage.call), stage.peer.receive_call()
        channel = next(each for each in stage.agent.peers.channels() if each.outstanding)
        (pending,) = channel.pending()
        finish, given_back = pending.finish, []

        def finish_too_late(answer: Message | None, error: BaseException | None) -> None:
            channel.abandon(pending.number)  # as whoever is struck by an interrupt does
            finish(answer, error)

        monkeypatch.setattr(pending, "finish", finish_too_late)
        monkeypatch.setattr(channel._answers, "discard", lambda body, _: given_back.append(body))
        stage.peer.reply(call, 5)
        caller.result()
        assert len(given_back) == 1
        assert not channel._given_up


@pytest.mark.parametrize("value", [5, {"a": 1}, torch.ones(3)], ids=["plain", "pickled", "tensor"])
def test_future_that_nobody_waits_for_is_completed(value: object) -> None:
    with Stage() as stage:
        future = stage.call_async()
        stage.peer.reply(stage.peer.receive_call(), value)
        wait_until(future.done)
        assert str(future.value()) == str(value)


@pytest.mark.parametrize("value", [5, {"a": 1}], ids=["plain", "pickled"])
def test_future_that_somebody_waits_for_is_completed_without_delay(value: object) -> None:
    clock = ManualClock()  # no look at the time, however often, can help
    with Stage(clock=clock) as stage:
        future = stage.call_async()
        waiter = Background(future.wait)
        stage.peer.reply(stage.peer.receive_call(), value)
        assert waiter.result() == value
        another = stage.call_async()
        call = stage.peer.receive_call()
        waiter = Background(another.wait)
        stage.peer.fail(call, ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            waiter.result()


def test_callbacks_run_on_a_thread_of_the_pool() -> None:
    with Stage() as stage:
        future = stage.call_async()
        where: list[bool] = []
        chained = future.then(
            lambda done: (where.append(stage.agent.thread_pool.owns_current_thread()), done)[0]
        )
        waiter = Background(stage.call)
        calls = {
            call.request: call for call in (stage.peer.receive_call(), stage.peer.receive_call())
        }
        stage.peer.reply(calls[1], 7)
        stage.peer.reply(calls[2], 8)
        waiter.result()
        wait_until(chained.done)
        assert where == [True]
        assert future.wait() == 7


def test_future_times_out_although_nobody_waits() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        futures = [stage.call_async(timeout=seconds) for seconds in (3, 1, 2)]
        clock.wait_until_waiting()
        for passed, expected in ((1, [False, True, False]), (1, [False, True, True])):
            clock.advance(passed)
            wait_until(lambda: [each.done() for each in futures] == expected)  # noqa: B023
        with pytest.raises(RpcTimeoutError, match="2000 ms"):
            futures[2].wait()
        clock.wait_until_waiting()
        clock.advance(1)
        with pytest.raises(RpcTimeoutError, match="3000 ms"):
            futures[0].wait()


def test_death_of_the_peer_fails_every_waiter_at_once() -> None:
    with Stage() as stage:
        waiters = [Background(stage.call) for _ in range(3)]
        futures = [stage.call_async() for _ in range(3)]
        for _ in range(6):
            stage.peer.receive_call()
        stage.peer.vanish()
        for waiter in waiters:
            with pytest.raises(PeerDiedError, match="'peer1' died"):
                waiter.result()
        for future in futures:
            with pytest.raises(PeerDiedError, match="'peer1' died"):
                Background(future.wait).result()
        with pytest.raises(PeerDiedError):
            stage.call()
        assert stage.agent.outstanding == 0


def test_loss_is_told_once_and_other_peers_are_not_concerned() -> None:
    with Stage(peers=2) as stage:
        lost: list[tuple[int, str]] = []
        stage.agent.on_peer_lost(lambda worker, error: lost.append((worker.rank, str(error))))
        waiter = Background(lambda: stage.call(to=2))
        call = stage.peers[1].receive_call()
        dying = Background(stage.call)
        stage.peer.receive_call()
        stage.peer.vanish()
        with pytest.raises(PeerDiedError):
            dying.result()
        stage.peers[1].reply(call, "alive")
        assert waiter.result() == "alive"
        wait_until(lambda: lost)
        assert [rank for rank, _ in lost] == [1]


def test_closing_fails_what_waits() -> None:
    with Stage() as stage:
        waiter, future = Background(stage.call), stage.call_async()
        stage.peer.receive_call()
        stage.peer.receive_call()
        stage.worker.close()
        with pytest.raises(PeerDiedError, match="shut down"):
            waiter.result()
        with pytest.raises(PeerDiedError, match="shut down"):
            future.wait()
