"""Connections that break: is the peer gone, or only the connection?

Both look alike at first. So the peer is called once more. A process that has ended refuses at
once, and is lost. Where one answers, only the connection was: what it carried may have arrived or
not, and nothing is sent again, since no function may run twice. Requests without an answer then end
in `ConnectionLostError`, whoever counts on one-way messages is told, and work goes on.

Until that is known, what waits for answers goes on waiting: for some milliseconds, mostly.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from lockstitch.errors import ConnectionLostError, LockstitchError, PeerDiedError, copy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.errors import RpcError
    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.runtime.channel import Channel
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.liveness import Liveness


class Judged(Protocol):
    """The peers, as far as they are needed here."""

    def channel(self, to: WorkerId) -> Channel: ...
    def status(self, worker: WorkerId) -> Channel | None: ...
    def caller(self, worker: WorkerId) -> object | None: ...
    def lose(self, peer: WorkerInfo, error: PeerDiedError) -> None: ...


class Breakages:
    """The broken connections of one agent, while they are being judged."""

    def __init__(self, core: Core, peers: Judged, liveness: Liveness) -> None:
        self._core = core
        self._peers = peers
        self._liveness = liveness
        self._lock = threading.Lock()
        self._open: dict[Channel, threading.Event] = {}
        self._causes: dict[WorkerId, str] = {}
        self._on_broken: list[Callable[[WorkerId, ConnectionLostError], None]] = []

    def on_broken(self, callback: Callable[[WorkerId, ConnectionLostError], None]) -> None:
        """Calls `callback(worker, error)`, on a thread of the pool, when a connection to or from a
        peer has ended that lives."""
        self._on_broken.append(callback)

    def channels(self) -> list[Channel]:
        """Returns the broken channels whose requests still wait for the verdict."""
        return list(self._open)

    def cause(self, worker: WorkerId) -> str:
        """What ended the connection to a worker that then could not be reached; empty where none
        has ended."""
        return self._causes.pop(worker, "")

    def judge(self, channel: Channel, cause: BaseException) -> None:
        """The connection of a channel has ended, which nobody uses any more from now on."""
        with self._lock:
            if channel in self._open or channel.error is not None:
                return
            self._open[channel] = threading.Event()
        self._core.spawn(partial(self._judge, channel.peer, cause, channel))

    def verdict(self, channel: Channel) -> RpcError:
        """What has become of a broken channel; waits until that is known."""
        known = self._open.get(channel)
        if known is not None:
            with self._core.blocked():
                known.wait()
        error = channel.error or ConnectionLostError(channel.peer.name)
        return cast("RpcError", copy_of(error))

    def judge_caller(self, peer: WorkerInfo, cause: BaseException) -> None:
        """A connection has ended on which a peer called us. Where we call it as well, that other
        connection shows whether it lives; where it has called anew, that does."""
        self._core.spawn(partial(self._judge_caller, peer, cause))

    def _judge_caller(self, peer: WorkerInfo, cause: BaseException) -> None:
        channel = self._peers.status(peer.worker)
        error = ConnectionLostError(peer.name, str(cause))
        if channel is not None:
            self._liveness.when_heard(channel, partial(self._tell, peer.worker, error))
        elif self._peers.caller(peer.worker) is not None:
            self._tell(peer.worker, error)
        else:
            self._judge(peer, cause, None)

    def _judge(self, peer: WorkerInfo, cause: BaseException, channel: Channel | None) -> None:
        self._causes[peer.worker] = str(cause)
        error: RpcError = ConnectionLostError(peer.name, str(cause))
        try:
            self._peers.channel(peer.worker)
        except ConnectionLostError:  # nobody can tell now: this process cannot connect
            pass
        except PeerDiedError as death:
            error = death.with_traceback(None)
        except LockstitchError:  # it refuses, or this worker has left
            error = PeerDiedError(peer.name, str(cause))
            self._peers.lose(peer, error)
        finally:
            self._causes.pop(peer.worker, None)
            if channel is not None:
                self._end(channel, error)
        if isinstance(error, ConnectionLostError):
            self._tell(peer.worker, error)

    def _tell(self, worker: WorkerId, error: ConnectionLostError) -> None:
        self._liveness.stop_hoping(worker)
        for callback in self._on_broken:
            callback(worker, error)

    def _end(self, channel: Channel, error: RpcError) -> None:
        channel.fail_all(error)
        with self._lock:
            known = self._open.pop(channel, None)
        if known is not None:
            known.set()

    def end(self, worker: WorkerId | None, error: RpcError) -> None:
        """Ends what waits for a verdict about that worker, which is lost, as something else has
        shown; None: this worker leaves."""
        for channel in self.channels():
            if worker in (None, channel.peer.worker):
                self._end(channel, error)
