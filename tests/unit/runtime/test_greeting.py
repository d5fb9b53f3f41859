"""The first words to a peer: who is not welcomed closes the connection and says why."""

from __future__ import annotations

import contextlib
import platform

import pytest

from lockstitch import __version__
from lockstitch.errors import HandshakeError, PeerDiedError, RemoteProtocolError, RpcError
from lockstitch.ids import WorkerId
from lockstitch.link.greetings import Challenge, Hello, Welcome, encode
from lockstitch.runtime.greeting import why_unfit
from tests.unit.runtime.stage import Stage

PEER = WorkerId(1, 0)


class Closing:
    """What a directory hands out in these tests; knows whether it was closed."""

    def __init__(self, stage: Stage, answer: bytes) -> None:
        self.is_closed = False
        self._near = stage.transport.connect(stage.peer._listener.address, 0)
        far = stage.peer._listener.accept()
        assert far is not None
        if answer:
            far.send([answer])
        else:
            far.close()
        self.peer = "the address of peer1"
        self.receive_into = self._near.receive_into
        self.lend, self.window = self._near.lend, self._near.window
        self.signs_of_life = self._near.signs_of_life

    def send(self, buffers) -> None:  # type: ignore[no-untyped-def]
        with contextlib.suppress(ConnectionError):  # a socket's reader is the first to see an end
            self._near.send(buffers)

    def close(self) -> None:
        self.is_closed = True
        self._near.close()


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (
            encode(Welcome("too old", "peer1", PEER)),
            RpcError,
            "refused the connection of .*: too old",
        ),
        (encode(Welcome("", "peer1", WorkerId(1, 3))), PeerDiedError, "has taken its place"),
        (encode(Challenge(bytes(32))), RemoteProtocolError, "a Challenge came out of order"),
        (bytes(100), RemoteProtocolError, "no greeting of a worker"),
        (b"", PeerDiedError, "closed the connection before any greeting"),
    ],
    ids=["refused", "replaced", "out of order", "nonsense", "closed"],
)
def test_connection_that_is_not_welcomed_is_closed(
    answer: bytes, error: type[Exception], reason: str
) -> None:
    with Stage() as stage:
        connection = Closing(stage, answer)
        stage.connect = lambda peer, timeout: connection  # type: ignore[assignment, method-assign]
        with pytest.raises(error, match=reason):
            stage.agent.peers.channel(PEER)
        assert connection.is_closed


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({}, ""),
        ({"python": "2.7.18"}, ", its caller 2.7.18"),
        ({"torch": "0.4.1"}, ", its caller 0.4.1"),
        (
            {"lockstitch": "9.1.0"},
            f"lockstitch {__version__} (on host {platform.node()}), its caller 9.1",
        ),
    ],
)
def test_callers_of_other_versions_are_unfit(versions: dict[str, str], reason: str) -> None:
    python, torch = Stage.versions()
    given = {"python": python, "torch": torch, **versions}
    why = why_unfit(Hello(False, bytes(32), PEER, "peer", PEER, **given))
    assert (reason in why and "install the same" in why) if reason else why == ""


def test_a_peer_of_another_protocol_is_named_with_its_address() -> None:
    welcome = bytearray(encode(Welcome("", "peer1", PEER, lockstitch="9.9.9")))
    welcome[5] = 99
    with Stage() as stage:
        connection = Closing(stage, bytes(welcome))
        stage.connect = lambda peer, timeout: connection  # type: ignore[assignment, method-assign]
        with pytest.raises(HandshakeError, match=r"no connection to worker 'peer1' at ") as caught:
            stage.agent.peers.channel(PEER)
    assert connection.peer in str(caught.value)
    assert "speaks protocol 99 (lockstitch 9.9.9)" in str(caught.value)
    assert f"(lockstitch {__version__})" in str(caught.value)
