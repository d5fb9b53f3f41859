"""The launcher's end of a host, and the client of ssh and the agent that a test plays."""

from __future__ import annotations

import os
import selectors
import signal

import pytest

from lockstitch import __version__
from lockstitch.launch.agent import remote_host
from lockstitch.launch.agent.messages import (
    FROM_AGENT,
    HELLO,
    HELLO_CODEC,
    TO_AGENT,
    Begin,
    Closing,
    Ended,
    Hello,
    NotStarted,
    Output,
    Remark,
    Signal,
    Start,
    Started,
)
from lockstitch.launch.agent.remote_host import Common, RemoteHost
from lockstitch.launch.pipes import Pipes
from lockstitch.link.pulse import Pulse
from lockstitch.testing import ManualClock

BEGIN = Begin(("train",), "5e" * 32, 5.0, 60.0)
PID = 4711


class Client:
    """What `subprocess.Popen` would give."""

    def __init__(self):
        self.pid, self.returncode = PID, None
        ends = [os.pipe() for _ in range(3)]
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(ends[0][1], "wb", 0),
            os.fdopen(ends[1][0], "rb", 0),
            os.fdopen(ends[2][0], "rb", 0),
        )
        self.input, self.output, self.errors = ends[0][0], ends[1][1], ends[2][1]

    def close(self):
        for descriptor in (self.input, self.output, self.errors):
            os.close(descriptor)


class Loop:
    """The launcher's loop, which also follows the workers."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.pipes = Pipes(self.selector)
        self.at_end, self.notes, self.outputs, self.ended = {}, [], [], []
        self.call_at_end = self.at_end.__setitem__
        self.note = self.notes.append
        self.take_end_elsewhere = self.ended.append

    def take_output(self, *output):
        self.outputs.append(output)


class World:
    def __init__(self):
        self.loop, self.client, self.clock = Loop(), Client(), ManualClock()
        self.common = Common(BEGIN, self.loop, self.loop, Pulse(10.0, self.clock))
        self.host = RemoteHost("beta", self.client, b"script\n", self.common)

    def turn(self):
        for key, _ in self.loop.selector.select(0):
            key.data()

    def greet(self, version=__version__):
        self.say(HELLO + HELLO_CODEC.encode(Hello(version, "/there")))

    def say(self, line):
        os.write(self.client.output, line + b"\n")
        self.turn()

    def tell(self, message):
        self.say(FROM_AGENT.encode(message))

    def told(self):
        """What the agent is told, but for the script."""
        os.set_blocking(self.client.input, False)
        try:
            lines = os.read(self.client.input, 1 << 16).split(b"\n")
        except BlockingIOError:
            return []
        return [TO_AGENT.decode(line) for line in lines if line not in (b"", b"script")]

    def end_client(self, code):
        status = code << 8 if code >= 0 else -code
        self.loop.at_end.pop(PID)(status)

    def close(self):
        if not self.host.has_ended:
            self.end_client(0)
        self.client.close()
        self.loop.selector.close()


@pytest.fixture
def killed(monkeypatch):
    killed = []
    monkeypatch.setattr(remote_host.os, "killpg", lambda *given: killed.append(given))
    return killed


@pytest.fixture
def world(killed):
    world = World()
    yield world
    world.close()


def test_an_agent_is_told_nothing_but_the_script_before_it_says_who_it_is(world):
    worker = world.host.start(3, {"RANK": "3"}, 2)
    assert world.told() == []
    world.say(b"welcome to beta")
    assert world.told() == []
    world.greet()
    assert world.told() == [BEGIN, Start(3, (("RANK", "3"),), 2)]
    world.host.start(4, {}, 2)
    assert world.told() == [Start(4, (), 2)]
    assert world.loop.notes == ["host beta: welcome to beta"]
    assert (worker.describe_end(), worker.pid, worker.host) == ("runs", 0, "beta")


def test_what_becomes_of_workers_is_passed_on_in_order(world):
    world.greet()
    worker, other = (world.host.start(number, {}, 2) for number in (3, 4))
    world.tell(Started(3, 77))
    world.tell(Output(3, "stderr", "na\u00c3\u00afve\n"))
    world.tell(Ended(3, -9, "out of memory"))
    world.tell(NotStarted(4, "no such file"))
    world.tell(Remark("a remark"))
    assert world.loop.outputs == [(3, "stderr", "naïve\n".encode())]
    assert world.loop.ended == [worker, other]
    assert (worker.pid, worker.exit_code, worker.why) == (77, -9, "out of memory")
    assert worker.describe_end() == "killed by SIGKILL on host beta"
    assert other.describe_end() == "it could not be started: no such file on host beta"
    assert world.loop.notes == ["host beta: a remark"]


def test_signals_go_to_the_agent_and_not_to_who_has_ended(world):
    world.greet()
    worker, other = (world.host.start(number, {}, 2) for number in (3, 4))
    world.tell(Ended(3, 0))
    world.told()
    for each in (worker, other):
        each.signal(signal.SIGINT)
        assert each.ask_what_it_waits_for()
    world.host.signal(signal.SIGTERM)
    assert world.told() == [Signal(2, 4), Signal(10, 4), Signal(15)]


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (255, 255, "its agent could not be started: exit code 255 on host beta"),
        (-9, 1, "its agent could not be started: killed by SIGKILL on host beta"),
        (0, 1, "its agent could not be started: exit code 0 on host beta"),
    ],
)
def test_where_no_agent_begins_its_workers_have_ended_with_what_was_said_instead(
    world, code, status, words
):
    workers = [world.host.start(number, {}, 2) for number in (3, 4)]
    os.write(world.client.errors, b"ssh: connect to host beta port 22: Connection refused\nbye")
    world.end_client(code)
    assert world.loop.ended == workers
    for each in workers:
        assert (each.exit_code, each.describe_end()) == (status, words)
        assert each.instead.telling()[-1] == b"bye"
    assert len(world.loop.notes) == 2
    assert world.common.deadlines == {}


def test_an_agent_of_another_version_is_refused_and_told_no_secret(world, killed):
    worker = world.host.start(3, {}, 1)
    world.greet("0.0.9")
    assert killed == [(PID, signal.SIGKILL)]
    assert world.told() == []
    world.end_client(-9)
    assert worker.exit_code == 1
    assert worker.describe_end() == (
        f"Lockstitch 0.0.9 in /there, and not {__version__} as the launcher has, is installed on "
        "host beta"
    )


def test_an_agent_that_does_not_begin_in_time_is_given_up(world, killed):
    worker = world.host.start(3, {}, 1)
    assert world.host in world.common.deadlines
    world.host.pass_deadline()
    assert killed
    world.end_client(-9)
    assert worker.describe_end() == "its agent has not begun within 60 s on host beta"


def test_workers_are_lost_with_their_agent_after_what_it_has_said_last(world):
    world.greet()
    workers = [world.host.start(number, {}, 3) for number in (3, 4, 5)]
    os.write(world.client.output, FROM_AGENT.encode(Output(4, "stdout", "last\n")) + b"\n")
    os.write(world.client.output, FROM_AGENT.encode(Ended(4, 0)) + b"\n")
    world.end_client(137)
    assert world.loop.outputs == [(4, "stdout", b"last\n")]
    assert [each.rank for each in world.loop.ended] == [4, 3, 5]
    assert {each.describe_end() for each in workers} == {
        "exit code 0 on host beta",
        "its agent has ended: exit code 137 on host beta",
    }
    assert workers[0].instead is None


def test_an_agent_that_falls_silent_is_given_up_with_the_reason(world, killed):
    world.greet()
    worker = world.host.start(3, {}, 1)
    lost = {}
    for _ in range(5):
        world.clock.advance(2.0)
        lost |= dict(world.common.pulse.pass_time())
    assert list(lost) == [world.host.lines]
    world.host.lose(f"its agent is lost: {lost[world.host.lines]}")
    world.end_client(-9)
    assert worker.describe_end() == ("its agent is lost: it has been silent for 10 s on host beta")


def test_an_agent_that_lives_is_not_lost(world):
    world.greet()
    for _ in range(10):
        world.clock.advance(2.0)
        assert world.common.pulse.pass_time() == []
        world.say(b"")


def test_an_agent_that_does_not_kill_in_time_is_given_up(world, killed):
    world.greet()
    worker = world.host.start(3, {}, 1)
    world.host.signal(signal.SIGKILL)
    first = world.common.deadlines[world.host]
    world.host.signal(signal.SIGKILL)
    assert world.common.deadlines[world.host] == first
    world.host.pass_deadline()
    world.end_client(-9)
    assert worker.describe_end() == "its agent has not killed it within 2 s on host beta"


def test_workers_that_are_stopped_before_an_agent_has_begun_are_never_started(world, killed):
    worker, other = (world.host.start(number, {}, 2) for number in (3, 4))
    worker.signal(signal.SIGUSR1)
    assert worker.exit_code is None
    worker.signal(signal.SIGKILL)
    assert world.loop.ended == [worker]
    world.greet()
    assert world.told() == [BEGIN, Start(4, (), 2)]
    assert other.exit_code is None


def test_all_that_are_stopped_before_an_agent_has_begun_have_ended(world, killed):
    workers = [world.host.start(number, {}, 2) for number in (3, 4)]
    world.host.signal(signal.SIGTERM)
    assert world.loop.ended == workers
    assert killed == [(PID, signal.SIGKILL)]


def test_an_agent_ends_with_the_last_of_its_workers(world):
    world.greet()
    world.host.start(3, {}, 1)
    world.told()
    world.host.close()
    world.host.signal(signal.SIGTERM)
    assert world.told() == [Signal(15)]
    world.tell(Ended(3, -15))
    os.set_blocking(world.client.input, True)
    assert os.read(world.client.input, 1) == b""


def test_an_agent_that_is_told_to_end_gets_no_more_workers(world):
    world.greet()
    assert not world.host.is_closing
    world.tell(Closing())
    assert world.host.is_closing


def test_words_of_others_among_those_of_an_agent_are_shown(world):
    world.greet()
    world.say(b"slurmstepd: error: something")
    assert world.loop.notes == ["host beta: slurmstepd: error: something"]
