"""A thread that listens reads for itself, can be woken by others, and leaves nothing unread."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
from types import SimpleNamespace

import pytest

from lockstitch.errors import ConnectionLostError, PeerDiedError
from lockstitch.ids import WorkerInfo
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.pending import Pending
from lockstitch.runtime.stream_channel import StreamChannel
from lockstitch.testing.clock import ManualClock
from lockstitch.transport.spin import Spinner
from lockstitch.transport.stream import StreamConnection
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.frames import DEFAULT_LIMITS
from lockstitch.wire.messages import ContextReleased
from tests.unit.runtime.stage import Background, Stage, wait_until


class ThreadPool:
    """Notes what a channel asks of its worker's threads."""

    def __init__(self):
        self.armed = 0
        self.checks = []
        self.callers = set()
        self.latest_wait = -math.inf

    def watch(self, _connection, _source): ...

    def watch_end(self, _connection): ...

    def forget(self, _connection): ...

    def arm(self, _connection):
        self.armed += 1

    def look_after(self, check):
        self.checks.append(check)

    def hasten(self): ...

    def has_more(self):
        return False

    def owns_current_thread(self):
        return False

    def blocked(self):
        return contextlib.nullcontext()


class Line:
    """A channel over a socket; `heard` is what was pushed."""

    def __init__(self):
        near, far = socket.socketpair()
        self.heard = []
        self.thread_pool = ThreadPool()
        self.sleeper = Pending(None, None, None)
        self.sleeper.is_shared = True
        self.lost = []
        self.clock = ManualClock()
        core = SimpleNamespace(
            options=AgentOptions(interned_functions=16),
            limits=DEFAULT_LIMITS,
            clock=self.clock,
            thread_pool=self.thread_pool,
            spawn=None,
            device_map=lambda peer: None,
        )
        answers = SimpleNamespace(
            handle=self.hear,
            fail_pending=lambda pending, error: pending.finish(None, error),
        )
        judge = SimpleNamespace(channel_broke=self.end)
        self.far = StreamConnection(far, "near")
        near_end = StreamConnection(near, "far")
        self.channel = StreamChannel(
            core, WorkerInfo("peer", 1), answers, judge, near_end, FrameDecoder()
        )
        # By a clock of its own: on a busy machine a spinner may not even look.
        ticks = itertools.count()
        self.channel._spinner = Spinner(now=lambda: next(ticks) * 1e-6)

    def end(self, channel, cause) -> None:
        self.lost.append(str(cause))
        channel.fail_all(PeerDiedError("peer", str(cause)))

    def hear(self, _sender, message):
        self.heard.append(message)
        self.sleeper.finish(None, None)

    def say(self, number):
        self.far.send(encode(ContextReleased(number)))


@pytest.fixture
def line():
    line = Line()
    yield line
    line.channel.close()
    line.far.close()


def test_who_listens_reads_for_itself(line):
    way = line.channel.listen_for_pushes()
    waiting = Background(way.wait, line.sleeper)
    line.say(7)
    waiting.result()
    assert line.heard == [ContextReleased(7)]
    assert line.thread_pool.armed == 0
    way.close()


@pytest.fixture
def lines():
    lines = [Line() for _ in range(3)]
    for line in lines[1:]:
        line.sleeper = lines[0].sleeper
    yield lines
    for line in lines:
        line.channel.close()
        line.far.close()


def ways_of(lines):
    return [line.channel.listen_for_pushes() for line in lines]


def test_who_listens_to_several_reads_them_all(lines):
    first, *others = ways_of(lines)
    for number, line in enumerate(lines):
        line.sleeper.done = False
        waiting = Background(first.wait_with, others, line.sleeper)
        line.say(number)
        waiting.result()
        assert line.heard == [ContextReleased(number)]
    assert not any(line.channel._right.lock.locked() for line in lines)


def test_others_can_finish_it_while_it_reads_several(lines):
    first, *others = ways_of(lines)
    waiting = Background(first.wait_with, others, lines[0].sleeper)
    wait_until(lines[-1].channel._right.lock.locked)
    lines[0].sleeper.finish(None, None)
    waiting.result()
    assert lines[0].sleeper.locks == []


def test_the_end_of_one_of_several_leaves_the_others(lines):
    first, *others = ways_of(lines)
    waiting = Background(first.wait_with, others, lines[0].sleeper)
    lines[0].far.close()
    lines[1].far.close()
    wait_until(lambda: lines[0].lost and lines[1].lost)
    lines[2].say(4)
    waiting.result()
    assert lines[2].heard == [ContextReleased(4)]


def test_when_all_of_several_have_ended_it_returns(lines):
    first, *others = ways_of(lines)
    for line in lines:
        line.far.close()
    first.wait_with(others, lines[0].sleeper)
    assert not lines[0].sleeper.done


def test_one_of_several_that_somebody_reads_is_attended_to(lines):
    first, *others = ways_of(lines)
    with lines[1].channel._right.lock:
        waiting = Background(first.wait_with, others, lines[0].sleeper)
        wait_until(lines[2].channel._right.lock.locked)
    assert lines[1].channel.is_urgent
    lines[2].say(5)
    waiting.result()
    assert [line.heard for line in lines] == [[], [], [ContextReleased(5)]]


def test_a_thread_that_waits_is_a_new_caller_for_a_moment(line):
    way = line.channel.listen_for_pushes()
    waiting = Background(way.wait, line.sleeper)
    wait_until(line.channel.has_new_caller)
    line.clock.advance(0.1)
    assert not line.channel.has_new_caller()
    line.say(7)
    waiting.result()
    way.close()


def test_what_came_before_is_found(line):
    way = line.channel.listen_for_pushes()
    line.say(7)
    way.wait(line.sleeper)
    assert line.heard == [ContextReleased(7)]
    way.close()


def test_others_can_finish_it_while_it_reads(line):
    way = line.channel.listen_for_pushes()
    waiting = Background(way.wait, line.sleeper)
    wait_until(line.channel._right.lock.locked)
    line.sleeper.finish(None, None)
    waiting.result()
    assert line.sleeper.locks == []
    way.wait(line.sleeper)  # nor does it wait for what is finished
    way.close()


def test_the_peers_end_finishes_it_with_an_error(line):
    way = line.channel.listen_for_pushes()
    waiting = Background(way.wait, line.sleeper)
    line.far.close()
    waiting.result()
    assert isinstance(line.sleeper.error, PeerDiedError)
    assert line.lost == ["it closed the connection"]
    with pytest.raises(PeerDiedError):
        way.wait(Pending(None, None, None))
    way.close()


def test_a_spin_wait_reads_what_is_there_and_does_not_block(line):
    way = line.channel.listen_for_pushes()
    way.spin_wait(line.sleeper)
    assert not line.sleeper.done
    line.say(7)
    way.spin_wait(line.sleeper)
    assert line.sleeper.done
    way.close()


def test_while_nobody_waits_the_pool_reads_a_moment_later(line):
    way = line.channel.listen_for_pushes()
    (check,) = line.thread_pool.checks
    assert line.thread_pool.armed == 0
    assert check()
    assert line.thread_pool.armed == 1
    line.say(7)
    line.channel.serve()
    assert line.heard == [ContextReleased(7)]
    way.attend()
    assert line.thread_pool.armed == 2
    way.close()


def test_it_is_closed_once(line):
    one, other = line.channel.listen_for_pushes(), line.channel.listen_for_pushes()
    assert line.channel.listeners == 2
    one.close()
    one.close()
    assert line.channel.listeners == 1
    other.close()
    assert line.channel.listeners == 0


def test_where_readers_cannot_be_woken_the_pool_reads_at_once():
    with Stage() as stage:
        heard = []
        sleeper = Pending(None, None, None)

        def handle(_sender, message):
            heard.append(message)
            sleeper.finish(None, None)

        stage.agent.handle(ContextReleased, handle)
        way = Background(stage.agent.listen, stage.peer.info.worker).result()
        waiting = Background(way.wait, sleeper)
        stage.peer.send(ContextReleased(3))
        waiting.result()
        assert heard == [ContextReleased(3)]
        way.close()


def test_a_message_that_nobody_handles_ends_the_connection():
    with Stage() as stage:
        call = Background(stage.call)
        stage.peer.receive_call()
        stage.peer.send(ContextReleased(3))
        with pytest.raises(ConnectionLostError, match="where replies belong"):
            call.result()


def test_who_is_gone_cannot_be_answered(monkeypatch):
    def reply(_message):
        raise ConnectionResetError("it closed the connection")

    with Stage() as stage:
        gone = SimpleNamespace(peer=stage.peer.info, reply=reply)
        monkeypatch.setattr(stage.agent.peers, "caller", lambda _worker: gone)
        with pytest.raises(ConnectionLostError, match="peer1"):
            stage.agent.send_back(stage.peer.info.worker, ContextReleased(3))
