"""The first words to a peer: who is not welcomed closes the connection and says why."""

from __future__ import annotations

import contextlib

import pytest

from lockstitch.errors import PeerDiedError, RemoteProtocolError, RpcError
from lockstitch.ids import WorkerId
from lockstitch.runtime.greeting import why_unfit
from lockstitch.transport.greetings import Challenge, Hello, Welcome, encode
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
        self.peer = "peer1"
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
        (encode(Welcome("too old", "peer1", PEER)), RpcError, "refused the connection: too old"),
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
    ("python", "torch", "reason"),
    [(None, None, ""), ("2.7.18", None, "it runs Python 2.7.18"), (None, "0.4.1", "torch 0.4.1")],
)
def test_callers_of_other_versions_are_unfit(
    python: str | None, torch: str | None, reason: str
) -> None:
    ours = Stage.versions()
    hello = Hello(False, bytes(32), PEER, "peer", PEER, python or ours[0], torch or ours[1])
    assert (reason in why_unfit(hello)) if reason else why_unfit(hello) == ""
