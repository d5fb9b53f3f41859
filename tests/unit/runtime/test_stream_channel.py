"""Who reads a connection: the thread that waits, its followers, or the pool; interrupts too."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch.errors import ConnectionLostError, PeerDiedError, RpcTimeoutError
from lockstitch.runtime import sending, stream_channel, thread_pool
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.encodings import PicklingRegistry
from lockstitch.wire.messages import Cancel, ContextReleased, Reply
from lockstitch.wire.pickling import pack
from tests.unit.runtime.stage import Background, Stage, wait_until
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere


def test_caller_reads_its_own_reply() -> None:
    with Stage() as stage:
        call = Background(stage.call, 1, "a")
        stage.peer.reply(stage.peer.receive_call(), [2, "b"])
        assert call.result() == [2, "b"]
        assert stage.agent.outstanding == 0


def test_follower_goes_on_reading_when_the_reader_has_its_answer() -> None:
    with Stage() as stage:
        first = Background(stage.call, 1)
        first_call = stage.peer.receive_call()
        second = Background(stage.call, 2)
        second_call = stage.peer.receive_call()
        stage.peer.reply(first_call, "one")
        assert first.result() == "one"
        stage.peer.reply(second_call, "two")
        assert second.result() == "two"


def test_reader_spins_again_after_an_answer_that_was_for_somebody_else() -> None:
    with Stage() as stage:
        future = stage.call_async(1)
        first_call = stage.peer.receive_call()
        channel = _channel(stage)
        spins: list[object] = []

        def spin(estimate: object) -> bool:
            spins.append(estimate)
            channel.connection.receive_into(channel.decoder.space(), channel.decoder.counts, None)
            return True

        channel._spin = spin
        call = Background(stage.call, 2)
        second_call = stage.peer.receive_call()
        wait_until(lambda: len(spins) == 1)
        stage.peer.reply(first_call, "one")
        wait_until(lambda: len(spins) == 2)
        stage.peer.reply(second_call, "two")
        assert call.result() == "two"
        assert future.wait() == "one"


def test_follower_goes_on_reading_when_the_readers_time_is_over() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        first = Background(lambda: stage.call(timeout=5))
        stage.peer.receive_call()
        second = Background(stage.call)
        second_call = stage.peer.receive_call()
        clock.wait_until_waiting()
        clock.advance(5)
        with pytest.raises(RpcTimeoutError, match=r"RPC ran for more than set timeout \(5000 ms\)"):
            first.result()
        stage.peer.reply(second_call, "late enough")
        assert second.result() == "late enough"


def test_follower_can_time_out_too() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        first = Background(stage.call)
        first_call = stage.peer.receive_call()
        second = Background(lambda: stage.call(timeout=5))
        stage.peer.receive_call()
        clock.wait_until_waiting()
        clock.advance(5)
        with pytest.raises(RpcTimeoutError):
            second.result()
        stage.peer.reply(first_call, 1)
        assert first.result() == 1


FULL = 2 << 20  # more than lies in a connection before its sender blocks


@pytest.fixture
def stands_still_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that takes nothing in passes for one that stands still without delay."""
    monkeypatch.setattr(sending, "STILL_SECONDS", 0.0)
    monkeypatch.setattr(stream_channel, "STILL_SECONDS", 0.0)


@pytest.fixture
def never_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """… or never, however long the test is held up."""
    monkeypatch.setattr(sending, "STILL_SECONDS", float("inf"))
    monkeypatch.setattr(stream_channel, "STILL_SECONDS", float("inf"))


@pytest.mark.usefixtures("never_stands_still")
def test_a_callers_time_ends_while_the_peer_takes_nothing_in() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        filling = stage.call_async(torch.zeros(FULL // 4))
        blocked = Background(lambda: stage.call(torch.zeros(FULL // 4), timeout=5))
        wait_until(lambda: stage.agent.outstanding == 2)
        clock.advance(5)
        with pytest.raises(RpcTimeoutError, match=r"\(5000 ms\).*'peer1' takes in nothing"):
            blocked.result()
        waiting, pause = set(), threading.Event()

        def wait_a_moment(_seconds: float) -> None:
            waiting.add(threading.get_ident())
            pause.wait(0.01)

        _channel(stage)._wait_until_clear = wait_a_moment
        later = [Background(lambda: stage.call(timeout=5)) for _ in range(5)]
        futures = Background(lambda: [stage.call_async(timeout=5)])
        wait_until(lambda: len(waiting) == 6)
        assert stage.agent.outstanding == 1  # the others wait before they make a request
        clock.advance(5)
        for each in later:
            with pytest.raises(RpcTimeoutError):
                each.result()
        (future,) = futures.result()
        with pytest.raises(RpcTimeoutError):
            future.wait()
        # From now on it takes in: what had been made, and nothing of the others.
        assert stage.peer.receive_call().request == 1
        assert stage.peer.receive_call().request == 2
        assert stage.peer.receive() == Cancel(2)
        again = Background(stage.call, "again")
        call = stage.peer.receive_call()
        assert call.request == 3
        stage.peer.reply(call, "fine")
        assert again.result() == "fine"
        assert not filling.done()


@pytest.mark.usefixtures("stands_still_at_once")
def test_an_asynchronous_call_does_not_wait_for_a_peer_that_takes_nothing_in() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        stage.call_async(torch.zeros(FULL // 4))
        impatient = Background(lambda: stage.call_async("a", timeout=5)).result()
        patient = [
            Background(lambda n=n: stage.call_async(n)).result()  # type: ignore[misc]
            for n in range(3)
        ]
        clock.wait_until_waiting()
        clock.advance(5)
        with pytest.raises(RpcTimeoutError, match=r"\(5000 ms\).*'peer1' takes in nothing"):
            Background(impatient.wait).result()
        # From now on it takes in, all of it, in order.
        calls = [stage.peer.receive_call() for _ in range(5)]
        assert [call.request for call in calls] == [1, 2, 3, 4, 5]
        for call in calls[2:]:
            stage.peer.reply(call, call.request)
        assert [Background(future.wait).result() for future in patient] == [3, 4, 5]


@pytest.mark.usefixtures("stands_still_at_once")
def test_an_asynchronous_call_waits_where_too_much_waits_already() -> None:
    clock = ManualClock()
    with Stage(clock=clock, options=AgentOptions(bytes_in_flight=1000)) as stage:
        stage.call_async(torch.zeros(FULL // 4))
        Background(lambda: stage.call_async("a" * 2000)).result()
        waiting = Background(lambda: stage.call_async("b", timeout=5))
        wait_until(
            lambda: any(each.name.startswith("background") for each in threading.enumerate())
        )
        assert waiting.is_running
        clock.advance(5)
        with pytest.raises(RpcTimeoutError, match="takes in nothing"):
            waiting.result().wait()


def test_waiting_for_a_future_of_the_reader_does_not_wait_for_the_next_message() -> None:
    """The waiter itself reads the pickled answer; the pool decodes it; nothing else ever comes."""
    with Stage() as stage:
        future = stage.call_async()
        call = stage.peer.receive_call()
        stage.agent.thread_pool.forget(_channel(stage).connection)  # the thread pool will not read
        waiter = Background(future.wait)
        wait_until(_channel(stage)._right.lock.locked)
        _channel(stage).connection.receive_into = _no_second_time(_channel(stage).connection)  # type: ignore[method-assign]
        stage.peer.reply(call, {"a": 1})
        assert waiter.result() == {"a": 1}


def _channel(stage: Stage, to: int = 1):  # type: ignore[no-untyped-def]
    return next(each for each in stage.agent.peers.channels() if each.peer.id == to)


def test_several_threads_wait_for_one_future() -> None:
    with Stage() as stage:
        future = stage.call_async()
        waiters = [Background(future.wait) for _ in range(4)]
        call = stage.peer.receive_call()
        wait_until(lambda: len(_channel(stage)._right.followers) == 3)
        stage.peer.reply(call, {"for": "all"})
        assert [waiter.result() for waiter in waiters] == [{"for": "all"}] * 4


def test_waiter_and_futures_share_a_channel() -> None:
    with Stage() as stage:
        futures = [stage.call_async(n) for n in range(3)]
        waiter = Background(stage.call)
        calls = [stage.peer.receive_call() for _ in range(4)]
        by_argument = {call.request: call for call in calls}
        stage.peer.reply(by_argument[2], 2)
        stage.peer.reply(by_argument[4], "waited for")
        assert waiter.result() == "waited for"
        stage.peer.reply(by_argument[1], 1)
        stage.peer.reply(by_argument[3], {"three": 3})
        wait_until(lambda: all(future.done() for future in futures))
        assert [future.value() for future in futures] == [1, 2, {"three": 3}]


@pytest.mark.parametrize(
    "message",
    [ContextReleased(1), Reply([1], None, pack(1, PicklingRegistry())[0])],  # type: ignore[arg-type]
    ids=["no reply", "no number"],
)
def test_connection_that_carries_nonsense_is_ended(message) -> None:  # type: ignore[no-untyped-def]
    with Stage() as stage:
        waiter, future = Background(stage.call), stage.call_async()
        stage.peer.receive_call()
        stage.peer.send(message)
        with pytest.raises(ConnectionLostError, match="'peer1' broke before the answer came"):
            waiter.result()
        with pytest.raises(ConnectionLostError):
            Background(future.wait).result()


READING = (
    "lockstitch.runtime.channel",
    "lockstitch.interrupts",
    "lockstitch.runtime.stream_channel",
    "lockstitch.runtime.pending",
    "lockstitch.wire.encoding",
    "lockstitch.wire.decoding",
)


CALLING = (
    *READING,
    "lockstitch.runtime.agent",
    "lockstitch.runtime.answers",
    "lockstitch.runtime.outgoing",
    "lockstitch.runtime.packing",
    "lockstitch.runtime.functions",
)


@pytest.mark.parametrize("value", [1, {"pickled": 1}], ids=["plain", "pickled"])
@pytest.mark.parametrize("is_follower", [True, False], ids=["follows", "reads"])
def test_interrupted_caller_leaves_a_channel_that_others_can_use(
    value: object, is_follower: bool
) -> None:
    """It is struck at any point; what others wait for still comes, and so does the next answer."""

    def attempt(number: int) -> Interrupter:
        with Stage() as stage:
            warm_up = Background(stage.call)
            stage.peer.reply(stage.peer.receive_call(), 0)
            warm_up.result()
            other = Background(stage.call if is_follower else stage.call_async)
            other_call = stage.peer.receive_call()
            replies = Background(stage.peer.reply_until_stopped, value)
            with interrupted(number, *CALLING) as striker:
                assert stage.call("mine") == value
            assert Background(stage.call, "next").result(striker.where) == value
            stage.peer.reply(other_call, "still served")
            waiter = other if is_follower else Background(other.result().wait)
            assert waiter.result(striker.where) == "still served"
            assert Background(stage.call, "stop").result(striker.where) == value
            replies.result()
            return striker

    assert strike_everywhere(attempt) > 30


@pytest.mark.parametrize("mine_is_last", [True, False])
def test_interrupted_reader_loses_nobodys_answer(mine_is_last: bool) -> None:
    """All answers are there when it is struck: each must reach its caller."""
    values = [5, {"pickled": 5}, torch.ones(2)]

    def attempt(number: int) -> Interrupter:
        with Stage() as stage:
            futures = [stage.call_async(index) for index in range(3)]
            calls = [stage.peer.receive_call() for _ in futures]
            stage.agent.thread_pool.forget(_channel(stage).connection)  # nobody else reads
            for call, value in zip(calls, values, strict=True):
                stage.peer.reply(call, value)
            mine = futures[2 if mine_is_last else 0]
            with interrupted(number, *READING) as striker:
                mine.wait()
            for future, value in zip(futures, values, strict=True):
                assert str(Background(future.wait).result(striker.where)) == str(value)
            return striker

    assert strike_everywhere(attempt) > 10


def test_what_a_peer_answered_before_it_was_found_gone_is_still_read() -> None:
    with Stage() as stage:
        call = Background(stage.call)
        request = stage.peer.receive_call()
        stage.agent.peers.lose(stage.peer.info, PeerDiedError("peer"))
        stage.peer.reply(request, "last words")
        assert call.result() == "last words"
        with pytest.raises(PeerDiedError):
            stage.call()


def test_but_not_waited_for_long() -> None:
    with Stage(clock=(clock := ManualClock())) as stage:
        call = Background(stage.call)
        stage.peer.receive_call()
        stage.agent.peers.lose(stage.peer.info, PeerDiedError("peer"))
        clock.advance(1.0)
        with pytest.raises(PeerDiedError):
            call.result()


def test_who_comes_to_read_after_its_answer_was_taken_does_not_wait_for_more() -> None:
    with Stage() as stage:
        future = stage.call_async("a")
        request = stage.peer.receive_call()
        [(channel, pending)] = [
            (channel, pending)
            for channel in stage.agent.peers.channels()
            for pending in channel.pending()
        ]
        pending.delivered = True  # by another reader, who has somebody else decode it
        Background(channel._read_until, pending).result()  # type: ignore[attr-defined]
        pending.delivered = False
        stage.peer.reply(request, "b")
        assert future.wait() == "b"


def _no_second_time(connection):  # type: ignore[no-untyped-def]
    """Receiving must not be tried again once the answer is there."""

    def receive_into(view, counts, seconds):  # type: ignore[no-untyped-def]
        raise AssertionError("reads on although the answer is there")

    return receive_into


def test_a_reader_that_serves_before_arming_has_returned_arms_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Stage() as stage:
        # The pool's monitor arms nothing by itself here, however long this thread is held up.
        monkeypatch.setattr(stage.agent.thread_pool, "look_after", lambda _check: None)
        future = stage.call_async(1)
        call = stage.peer.receive_call()
        channel, arm = _channel(stage), stage.agent.thread_pool.arm
        armed: list[object] = []

        def arm_and_be_served(connection: object) -> None:
            armed.append(connection)
            if len(armed) == 1:
                channel._right.note_told()  # as `serve` does first, in the reader's thread
            else:
                arm(channel.connection)

        monkeypatch.setattr(stage.agent.thread_pool, "arm", arm_and_be_served)
        channel.attend()
        channel.expect_answers()  # the last: it has read all that was there
        assert len(armed) == 2
        stage.peer.reply(call, "read")
        wait_until(future.done)


def test_what_a_reader_of_the_pool_leaves_is_taken_while_its_task_goes_on() -> None:
    with Stage() as stage:
        future = stage.call_async(1)
        call = stage.peer.receive_call()
        channel = _channel(stage)
        decoder, over = channel.decoder, threading.Event()

        def handle_and_go_on() -> None:
            thread_pool._local.thread.after = []  # as the handler of a message that spawns tasks
            channel._right.pass_on()
            over.wait()
            thread_pool._local.thread.after = None

        with channel._right.lock:
            stage.peer.reply(call, "one")
            channel.connection.receive_into(decoder.space(), decoder.counts, 5)
        stage.agent.spawn(handle_and_go_on)
        try:
            wait_until(lambda: torch.futures.Future.done(future))
        finally:
            over.set()
        assert future.wait() == "one"
