"""Who the peers are, how to reach them, and which of them are gone.

One channel to each peer that we call, one incoming connection from each that calls us. A peer is
lost once in a life: whoever waits for it fails, whoever asked is told, later calls fail at once.
"""

from __future__ import annotations

import contextlib
import platform
import threading
from typing import TYPE_CHECKING, Final, Protocol

import torch

from lockstitch.errors import (
    LockstitchError,
    NotInitializedError,
    PeerDiedError,
    RemoteProtocolError,
    RpcError,
)
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.runtime.channel import Channel, StreamChannel
from lockstitch.wire.frames import encode
from lockstitch.wire.messages import Hello, Leave, Welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.runtime.agent import Agent
    from lockstitch.runtime.incoming import IncomingConnection
    from lockstitch.transport.base import Connection
    from lockstitch.wire.frames import FrameDecoder

PROTOCOL: Final = 1
_CONNECT_SECONDS: Final = 30.0
_PYTHON: Final = platform.python_version()
_TORCH: Final = str(torch.__version__)


class Directory(Protocol):
    """Who the workers are, and where."""

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        """The worker of that name, rank or identity, or None."""
        ...

    def members(self) -> Sequence[WorkerInfo]:
        """All that are known now."""
        ...

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        """A fresh connection to a worker. Raises `ConnectionError` or `TimeoutError`."""
        ...


class Peers:
    """The peers of one agent; see the module."""

    def __init__(self, agent: Agent, directory: Directory) -> None:
        self._agent = agent
        self._directory = directory
        self._channels: dict[WorkerId, Channel] = {}
        self._callers: dict[WorkerId, IncomingConnection] = {}
        self._incoming: set[IncomingConnection] = set()
        self._connecting: dict[WorkerId, threading.Lock] = {}
        self._greeting: set[Connection] = set()
        self._lost: dict[WorkerId, PeerDiedError] = {}
        self._on_lost: list[Callable[[WorkerId, PeerDiedError], None]] = []
        self._closed = False

    # ------------------------------------------------------------ who

    def resolve(self, to: str | int | WorkerInfo) -> WorkerInfo:
        """The worker meant by a name, a rank or an info. Raises `RpcError` for an unknown one."""
        key: object = to.id if isinstance(to, WorkerInfo) else to
        if not isinstance(key, (str, int)):
            raise ValueError(f"a worker is named by str, int or WorkerInfo, not by {to!r}")
        found = self._directory.find(key)
        if found is None:
            known = ", ".join(repr(member.name) for member in self._directory.members())
            raise RpcError(f"could not find destination {key!r}: the workers are {known}")
        return found

    def info_of(self, worker: WorkerId) -> WorkerInfo:
        """Name and rank of a worker by its identity."""
        return self._directory.find(worker) or WorkerInfo(
            f"rank{worker.rank}:life{worker.generation}", *worker
        )

    def members(self) -> Sequence[WorkerInfo]:
        """All workers that are known now."""
        return self._directory.members()

    def channels(self) -> list[Channel]:
        """The channels there are now."""
        return list(self._channels.values())

    # ------------------------------------------------------------ reaching them

    def add(self, worker: WorkerId, channel: Channel) -> None:
        """A channel that needs no connecting: the one to oneself."""
        self._channels[worker] = channel

    def channel(self, to: WorkerId) -> Channel:
        """The channel to a worker; connects on first use. Raises `PeerDiedError`."""
        channel = self._channels.get(to)
        if channel is not None:
            return channel
        with self._connecting.setdefault(to, threading.Lock()):
            channel = self._channels.get(to)
            if channel is None:
                channel = self._channels[to] = self._connect(self.info_of(to))
        return channel

    def _connect(self, peer: WorkerInfo) -> Channel:
        if self._closed:
            raise NotInitializedError("RPC has not been initialized: this worker has shut down")
        lost = self._lost.get(peer.worker)
        if lost is not None:
            raise PeerDiedError(lost.worker, lost.cause)
        try:
            connection = self._directory.connect(peer, _CONNECT_SECONDS)
        except (ConnectionError, TimeoutError) as error:
            raise self._unreachable(peer, f"it cannot be reached ({error})") from error
        self._greeting.add(connection)
        try:
            if self._closed:  # in the meantime: `close` may not have seen this connection
                raise ConnectionAbortedError("this worker has shut down")
            decoder = self._greet(peer, connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, (ConnectionError, BlockingIOError)):
                raise self._unreachable(peer, f"it cannot be reached ({error})") from error
            raise
        finally:
            self._greeting.discard(connection)
        return StreamChannel(self._agent, peer, connection, decoder)

    def _greet(self, peer: WorkerInfo, connection: Connection) -> FrameDecoder:
        decoder = self._agent.decoder(connection)
        info = self._agent.info
        connection.send(encode(Hello(PROTOCOL, _PYTHON, _TORCH, info.name, info.worker)))
        while not decoder.messages:
            connection.receive_into(decoder.space(), decoder.counts, _CONNECT_SECONDS)
            if 0 in decoder.counts:
                raise ConnectionResetError("it closed the connection before any greeting")
            decoder.absorb()
        answer = decoder.messages.popleft()
        if not isinstance(answer, Welcome):
            raise RemoteProtocolError(f"{peer.name!r} answered a greeting with {answer!r}")
        if answer.refusal:
            raise RpcError(f"worker {peer.name!r} refused the connection: {answer.refusal}")
        if answer.worker != peer.worker:
            raise ConnectionRefusedError(f"{answer.worker} has taken its place")
        return decoder

    def _unreachable(self, peer: WorkerInfo, cause: str) -> PeerDiedError:
        error = PeerDiedError(peer.name, cause)
        self.lose(peer, error)
        return error

    def welcome(self, hello: Hello) -> tuple[WorkerInfo, Welcome]:
        """Decides on a caller's greeting."""
        refusal = ""
        if hello.protocol != PROTOCOL:
            refusal = f"it speaks protocol {hello.protocol}, this worker {PROTOCOL}"
        elif hello.python.split(".")[:2] != _PYTHON.split(".")[:2]:
            refusal = (
                f"it runs Python {hello.python}, this worker {_PYTHON}: values would not match"
            )
        elif hello.torch.split(".")[:2] != _TORCH.split(".")[:2]:
            refusal = f"it runs torch {hello.torch}, this worker {_TORCH}"
        me = self._agent.info
        return WorkerInfo(hello.name, *hello.worker), Welcome(refusal, me.name, me.worker)

    def note_incoming(self, caller: IncomingConnection) -> None:
        """Somebody has connected, who is still to say who it is."""
        self._incoming.add(caller)
        if self._closed:
            caller.close()

    def note_caller(self, caller: IncomingConnection) -> None:
        """A peer that has connected is who it says."""
        self._callers[caller.peer.worker] = caller

    def caller(self, worker: WorkerId) -> IncomingConnection | None:
        """The connection on which `worker` calls us, if it does."""
        return self._callers.get(worker)

    # ------------------------------------------------------------ losing them

    def caller_lost(self, caller: IncomingConnection, cause: BaseException) -> None:
        """The connection on which a peer called us has ended."""
        peer = caller.peer
        self._incoming.discard(caller)
        if self._callers.get(peer.worker) is caller:
            del self._callers[peer.worker]
            self.lose(peer, PeerDiedError(peer.name, str(cause)))
        if not isinstance(cause, ConnectionError):
            self._agent.report(cause)

    def lose(self, peer: WorkerInfo, error: PeerDiedError) -> None:
        """A peer is gone."""
        if self._closed or self._lost.setdefault(peer.worker, error) is not error:
            return
        channel = self._channels.pop(peer.worker, None)
        if channel is not None:
            channel.end(error)
        for callback in self._on_lost:
            self._agent.spawn(lambda callback=callback: callback(peer.worker, error))  # type: ignore[misc]

    def note_leave(self, sender: WorkerId, _message: Leave) -> None:
        """A peer has shut down in good order."""
        caller = self._callers.get(sender)
        peer = caller.peer if caller is not None else self.info_of(sender)
        self.lose(peer, PeerDiedError(peer.name, "it has shut down"))

    def is_lost(self, worker: WorkerId) -> bool:
        """Whether that worker is known to be gone."""
        return worker in self._lost

    def on_lost(self, callback: Callable[[WorkerId, PeerDiedError], None]) -> None:
        """Calls `callback(worker, error)`, on a thread of the crew, when a peer is lost."""
        self._on_lost.append(callback)

    def leave(self) -> None:
        """Tells all who are connected that this worker goes: on each connection, since whichever
        ends first at the other side should not pass for a death."""
        goodbye = Leave(self._agent.id)
        ways = [each.transmit for each in self.channels() if isinstance(each, StreamChannel)]
        ways += [each.reply for each in list(self._callers.values())]
        for send in ways:
            with contextlib.suppress(ConnectionError, LockstitchError):  # it has left before
                send(goodbye)
        self._closed = True

    def close(self) -> None:
        """Ends all connections, and what waits on them."""
        gone = PeerDiedError(self._agent.info.name, "this worker has shut down")
        for channel in self.channels():
            channel.fail_all(gone)
            channel.close()
        for connection in list(self._greeting):
            connection.close()
        for caller in list(self._incoming):
            caller.close()
