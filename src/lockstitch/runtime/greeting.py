"""The caller's first words on a fresh connection: who both are, and whether it will be served.

The greetings are in `link.greetings`, their order in `link.handshake`; the side of the
called one is `runtime.pending_handshakes`.
"""

from __future__ import annotations

import contextlib
import platform
from typing import TYPE_CHECKING, Final

import torch

from lockstitch.errors import HandshakeError, RpcError
from lockstitch.ids import ANYBODY
from lockstitch.link.handshake import CallerHandshake, why_other_version
from lockstitch.link.line import exchange
from lockstitch.wire.authentication import FrameAuthenticator

if TYPE_CHECKING:
    from lockstitch.ids import WorkerInfo
    from lockstitch.link.greetings import Hello
    from lockstitch.runtime.core import Core
    from lockstitch.transport.base import Connection
    from lockstitch.wire.decoding import FrameDecoder

GIVEN_UP: Final = "it has given this worker up as dead"
"""With these words a refusal begins where the caller passes for dead."""
_CONNECT_SECONDS: Final = 30.0
_PYTHON: Final = platform.python_version()
_TORCH: Final = str(torch.__version__)


def greet(core: Core, peer: WorkerInfo, connection: Connection) -> FrameDecoder:
    """Greets `peer` and returns what reads its messages from now on.

    Raises `ConnectionError`, or `BlockingIOError` for a peer that stays silent; `RpcError` where it
    refuses to serve this worker, `HandshakeError` where it greets as no worker of this job does.
    """
    whom = "the group's member" if peer.worker == ANYBODY else f"worker {peer.name!r}"
    handshake = CallerHandshake(core.info, peer.worker, (_PYTHON, _TORCH), core.options.secret)
    try:
        welcome = exchange(
            handshake,
            lambda greeting: connection.send([greeting]),
            lambda view: _await_answer(core, connection, view),
        )
    except HandshakeError as error:
        raise HandshakeError(
            f"no connection to {whom} at {connection.peer}: {error}", error.reason
        ) from None
    if handshake.is_proved and peer.worker not in (welcome.worker, ANYBODY):
        raise ConnectionRefusedError(f"{welcome.worker} has taken its place")
    if handshake.is_proved and welcome.refusal.startswith(GIVEN_UP):
        raise ConnectionRefusedError(welcome.refusal)
    if welcome.refusal:
        who, where = f"worker {core.info.name!r}", f"it listens at {connection.peer}"
        raise RpcError(f"{whom} refused the connection of {who}: {welcome.refusal} ({where})")
    decoder = core.decoder(connection, handshake.keys)
    if decoder.is_authenticated and handshake.keys is not None:
        connection.seal(FrameAuthenticator(handshake.keys.outgoing))
    return decoder


def why_unfit(hello: Hello) -> str:
    """Why this worker cannot exchange values with a caller; empty if it can."""
    return why_other_version(hello, python=_PYTHON, torch=_TORCH)


def longest_silence_seconds(core: Core) -> float:
    """How long a peer may take to let this worker connect, and to show signs of life after that."""
    return min(core.options.heartbeat_timeout or _CONNECT_SECONDS, _CONNECT_SECONDS)


def _await_answer(core: Core, connection: Connection, view: memoryview) -> int:
    """Receives something and returns how much. Raises `BlockingIOError` when the peer shows no sign
    of life for as long as `Liveness` grants, or does not answer in half a minute."""
    bound = longest_silence_seconds(core)
    counts: list[int] = []
    signs, silent = connection.signs_of_life(), 0
    for _ in range(int(5 * _CONNECT_SECONDS / bound)):
        with contextlib.suppress(BlockingIOError):
            connection.receive_into(view, counts, bound / 5)
            return counts[0]
        now = connection.signs_of_life()
        signs, silent = now, silent + 1 if now == signs else 0
        if silent == 5:
            raise BlockingIOError(f"it has been silent for {bound:g} s")
    raise BlockingIOError(f"it did not answer a greeting in {_CONNECT_SECONDS:g} s")
