"""Strangers at the door: whatever they do, the worker goes on serving its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.link.greetings import Challenge, Hello, Welcome, decode, encode
from lockstitch.link.handshake import CallerHandshake
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing import ManualClock
from lockstitch.trust.secret import Secret
from tests.unit.runtime.stage import Caller, Stage, receive_greeting, wait_until

if TYPE_CHECKING:
    from lockstitch.transport.base import Connection

SECRET = Secret(bytes(range(32)))
PROVING = AgentOptions(secret=SECRET)


def connect(stage: Stage, name: str = "stranger") -> Connection:
    return stage.network.transport(name).connect(stage.address, 0)


def refused(stage: Stage) -> dict[str, int]:
    return dict(stage.agent.statistics().strangers)


def is_closed(connection: Connection) -> bool:
    counts: list[int] = []
    connection.receive_into(memoryview(bytearray(1)), counts, 10)
    return counts == [0]


def check_it_serves(stage: Stage) -> None:
    """With the secret one comes in and is answered."""
    options = stage.agent.options
    handshake = CallerHandshake(
        WorkerInfo("peer1", 1), WorkerId(0, 0), Stage.versions(), options.secret
    )
    caller = Caller(stage, WorkerInfo("peer1", 1), hello=handshake.opening)
    while handshake.welcome is None:
        greeting = receive_greeting(caller.connection)
        assert greeting is not None
        answer = handshake.take(greeting)
        if answer:
            caller.send_bytes(answer)
    assert not handshake.welcome.refusal
    caller.send(caller.call("builtins:abs", -3))
    assert caller.answer() == 3


@pytest.mark.parametrize("options", [AgentOptions(), PROVING], ids=["unproved", "proved"])
def test_whoever_proves_itself_is_served(options: AgentOptions) -> None:
    with Stage(options=options) as stage:
        check_it_serves(stage)
        assert refused(stage) == {}
        assert len(stage.agent.pending_handshakes) == 0


def test_stranger_is_challenged_and_learns_nothing() -> None:
    with Stage(options=PROVING) as stage:
        stranger = connect(stage)
        hello = Hello(True, bytes(32), WorkerId(0, 0), "peer1", WorkerId(1, 0), "3", "2")
        stranger.send([encode(hello)])
        greeting = receive_greeting(stranger)
        assert greeting is not None
        challenge = decode(greeting)
        assert isinstance(challenge, Challenge)
        stranger.send([encode(hello)])
        assert is_closed(stranger)
        check_it_serves(stage)
        assert refused(stage) == {"out of order": 1}


def test_caller_without_a_secret_hears_why() -> None:
    with Stage(options=PROVING) as stage:
        caller = Caller(stage, WorkerInfo("peer1", 1))
        welcome = caller.receive_welcome()
        assert isinstance(welcome, Welcome)
        assert "LOCKSTITCH_SECRET" in welcome.refusal
        assert caller.receive() is None
        assert refused(stage) == {"no secret there": 1}
        assert not stage.agent.peers.is_lost(WorkerId(1, 0))


def test_caller_of_another_python_or_torch_hears_why() -> None:
    with Stage() as stage:
        for versions, words in (
            (("2.7.1", Stage.versions()[1]), "its caller 2.7.1"),
            ((Stage.versions()[0], "0.4.0"), "its caller 0.4.0"),
        ):
            old = Hello(False, bytes(32), WorkerId(0, 0), "peer1", WorkerId(1, 0), *versions)
            welcome = Caller(stage, WorkerInfo("peer1", 1), hello=encode(old)).receive_welcome()
            assert welcome is not None
            assert words in welcome.refusal
        assert refused(stage) == {"refused": 2}


def test_storm_of_those_who_connect_and_close_disturbs_nobody() -> None:
    with Stage(options=PROVING) as stage:
        for _ in range(300):
            connect(stage).close()
        check_it_serves(stage)
        wait_until(lambda: sum(refused(stage).values()) == 300)
        assert set(refused(stage)) <= {"gone", "pushed out"}


def test_garbage_is_turned_away() -> None:
    with Stage(options=PROVING) as stage:
        for data in (b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n", bytes(600), b"LKST\x08\x02\xff\xff"):
            stranger = connect(stage)
            stranger.send([data])
            assert is_closed(stranger)
        check_it_serves(stage)
        assert refused(stage) == {"garbage": 4}


def test_who_says_nothing_in_time_is_turned_away() -> None:
    clock = ManualClock()
    with Stage(options=AgentOptions(secret=SECRET, handshake_seconds=10), clock=clock) as stage:
        silent, slow = connect(stage), connect(stage)
        slow.send([b"LKST"])
        wait_until(lambda: len(stage.agent.pending_handshakes) == 2)
        clock.advance(9.9)
        assert len(stage.agent.pending_handshakes) == 2
        clock.advance(0.2)
        assert is_closed(silent)
        assert is_closed(slow)
        assert refused(stage) == {"too slow": 2}
        check_it_serves(stage)


def test_a_pending_handshake_is_not_late_because_this_process_was_stopped() -> None:
    clock = ManualClock()
    with Stage(options=AgentOptions(secret=SECRET, handshake_seconds=10), clock=clock) as stage:
        pending = connect(stage)
        wait_until(lambda: len(stage.agent.pending_handshakes) == 1)
        clock.wait_until_waiting()
        clock.advance(1000)
        clock.wait_until_waiting()
        assert len(stage.agent.pending_handshakes) == 1
        clock.advance(10.2)
        assert is_closed(pending)
        assert refused(stage) == {"too slow": 1}


def test_the_oldest_gives_way_where_too_many_wait() -> None:
    options = AgentOptions(secret=SECRET, unproved_connections=4)
    with Stage(options=options) as stage:
        strangers = [connect(stage) for _ in range(7)]
        wait_until(lambda: refused(stage) == {"pushed out": 3})
        assert all(map(is_closed, strangers[:3]))
        assert len(stage.agent.pending_handshakes) == 4
        check_it_serves(stage)


def test_those_who_wait_are_let_go_when_the_worker_ends() -> None:
    with Stage(options=PROVING) as stage:
        stranger = connect(stage)
        wait_until(lambda: len(stage.agent.pending_handshakes) == 1)
    assert is_closed(stranger)
