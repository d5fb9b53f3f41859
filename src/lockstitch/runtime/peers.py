"""Who the peers are, how to reach them, and which of them are gone.

One channel to each peer that we call, one incoming connection from each that calls us. A peer is
lost once in a life: whoever waits for it fails, whoever asked is told, later calls fail at once.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from lockstitch.attach.logs import ProcessLog
from lockstitch.errors import (
    ConnectionLostError,
    LockstitchError,
    NotInitializedError,
    PeerDiedError,
    PeerLeftError,
    RpcError,
    copy_of,
)
from lockstitch.ids import WorkerId, WorkerInfo, names_like
from lockstitch.link.sockets import SHORTAGES
from lockstitch.runtime.breakages import Breakages
from lockstitch.runtime.channel import timeout_of
from lockstitch.runtime.greeting import GIVEN_UP, greet, longest_silence_seconds, why_unfit
from lockstitch.runtime.liveness import Liveness
from lockstitch.runtime.stream_channel import StreamChannel
from lockstitch.wire.messages import Leave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.link.greetings import Hello
    from lockstitch.runtime.channel import Channel
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.incoming import IncomingConnection
    from lockstitch.runtime.pending import Pending
    from lockstitch.transport.base import Connection
    from lockstitch.wire.decoding import FrameDecoder

    OpenChannel = Callable[[WorkerInfo, Connection, FrameDecoder], StreamChannel]

_log = ProcessLog(__name__)

_MANY: Final = 1000
_GREETINGS: Final = 3
_CONTACT_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.1


class Directory(Protocol):
    """Who the workers are, and where."""

    is_fixed: bool
    """Whether it will always say the same."""

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        """The worker of that name, rank or identity, or None."""
        ...

    def members(self) -> Sequence[WorkerInfo]:
        """All workers that are known now."""
        ...

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        """A fresh connection to a worker. Raises `ConnectionError` or `TimeoutError`."""
        ...

    def elsewhere(self, worker: WorkerId) -> str:
        """Where a worker is, as the end of what is said of it; empty where that is this host, or
        not known here."""
        ...


class _Contact:
    """A thread connects, and others wait for it; `error` is why it could not."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.error: LockstitchError | None = None


class Peers:
    """The peers of one agent; see the module."""

    def __init__(self, core: Core, directory: Directory, open_channel: OpenChannel) -> None:
        self._core = core
        self._open_channel = open_channel
        self._directory = directory
        self._known: dict[str | int, WorkerInfo] = {}
        self._channels: dict[WorkerId, Channel] = {}
        self._callers: dict[WorkerId, IncomingConnection] = {}
        self._incoming: set[IncomingConnection] = set()
        self._connecting: dict[WorkerId, threading.Lock] = {}
        self._contacts: dict[WorkerId, _Contact] = {}
        self._breaking = threading.Lock()
        self._greeting: dict[Connection, WorkerInfo] = {}
        self.refused = 0
        """How many that were given up as dead have tried to go on."""
        self._lost: dict[WorkerId, PeerDiedError] = {}
        self.liveness = Liveness(core, self)
        self.breakages = Breakages(core, self, self.liveness)
        self._on_caller_gone: list[Callable[[WorkerId], None]] = []
        self._on_lost: list[Callable[[WorkerId, PeerDiedError], None]] = []
        self.on_lost(lambda worker, _error: self.liveness.forget(worker))
        self._closed = False

    # ------------------------------------------------------------ who

    def resolve(self, to: str | int | WorkerInfo) -> WorkerInfo:
        """The worker meant by a name, a rank or an info. Raises `RpcError` for an unknown one."""
        if type(to) is str or type(to) is int:
            known = self._known.get(to)
            if known is not None:
                return known
        key: object = to.id if isinstance(to, WorkerInfo) else to
        if not isinstance(key, (str, int)):
            raise ValueError(f"a worker is named by str, int or WorkerInfo, not by {to!r}")
        found = self._directory.find(key)
        if found is None:
            raise self._not_found(key)
        if self._directory.is_fixed:
            self._known[key] = found
        return found

    def _not_found(self, key: str | int) -> RpcError:
        here = names_like(key, [member.name for member in self._directory.members()])
        text = f"could not find destination {key!r}: "
        if self._directory.is_fixed:
            return RpcError(f"{text}the workers are {here}")
        awaited = repr(key) if isinstance(key, str) else "name"
        return RpcError(
            f"{text}this group is dynamic, since init_rpc was given no world_size. To wait for who "
            f"is still to come, call rpc.wait_for_worker({awaited}), or give all workers the same "
            f"world_size. The workers now are {here}"
        )

    def info_of(self, worker: WorkerId) -> WorkerInfo:
        """Name and rank of a worker by its identity."""
        channel = self._channels.get(worker)
        if channel is not None:
            return channel.peer
        return self._directory.find(worker) or WorkerInfo(
            f"rank{worker.rank}:life{worker.generation}", *worker
        )

    def members(self) -> Sequence[WorkerInfo]:
        """All workers that are known now."""
        return self._directory.members()

    def channels(self) -> list[Channel]:
        """The channels there are now."""
        return [*self._channels.values(), *self.breakages.channels()]

    # ------------------------------------------------------------ reaching them

    def add(self, worker: WorkerId, channel: Channel) -> None:
        """A channel that needs no connecting: the one to oneself."""
        self._channels[worker] = channel

    def status(self, worker: WorkerId) -> Channel | None:
        """The channel to a worker, if there is one now."""
        return self._channels.get(worker)

    def channel(self, to: WorkerId, pending: Pending | None = None) -> Channel:
        """The channel to a worker; connects on first use. Raises `PeerDiedError`; with a `pending`
        that has a deadline, `RpcTimeoutError` then, or after half a second: connecting goes on."""
        channel = self._channels.get(to)
        if channel is not None:
            return channel
        if pending is not None and pending.deadline is not None and to not in self._lost:
            self._await_contact(to, pending, pending.deadline)
        with self._connecting.setdefault(to, threading.Lock()):
            channel = self._channels.get(to)
            if channel is None:
                channel = self._channels[to] = self._connect(self.info_of(to))
        return channel

    def _await_contact(self, to: WorkerId, pending: Pending, deadline: float) -> None:
        """Has a thread of the pool connect, one for all who want to, and waits for it: at least as
        long as that may take where all is well, so that a request leaves however short its time."""
        deadline = max(deadline, self._core.clock.now() + _CONTACT_SECONDS)
        mine = _Contact()
        contact = self._contacts.setdefault(to, mine)
        if contact is mine:
            self._core.spawn(partial(self._make_contact, to, contact))
        with self._core.blocked():
            while not contact.is_over.is_set():
                seconds = deadline - self._core.clock.now()
                if seconds <= 0:
                    raise timeout_of(pending, self.info_of(to), "has not taken up the connection")
                contact.is_over.wait(min(seconds, _LOOK_SECONDS))
        if contact.error is not None:
            raise copy_of(contact.error)

    def _make_contact(self, to: WorkerId, contact: _Contact) -> None:
        try:
            self.channel(to)
        except LockstitchError as error:
            contact.error = error.with_traceback(None)
        finally:
            self._contacts.pop(to, None)
            contact.is_over.set()

    def _connect(self, peer: WorkerInfo) -> Channel:
        if self._closed:
            raise NotInitializedError("RPC has not been initialized: this worker has shut down")
        lost = self._lost.get(peer.worker)
        if lost is not None:
            raise copy.copy(lost)
        try:
            connection, decoder = self._open(peer)
        except (ConnectionError, TimeoutError, BlockingIOError) as error:
            if getattr(error.__cause__, "errno", None) in SHORTAGES:
                raise ConnectionLostError(
                    peer.name, f"no connection can be made: {error}"
                ) from None
            # Nobody listens any more: most likely its program had nothing left to do.
            ended = isinstance(error.__cause__, (FileNotFoundError, ConnectionRefusedError))
            advice = "; has its program ended without waiting in shutdown?" if ended else ""
            place = self._directory.elsewhere(peer.worker)
            where = "" if place.removeprefix(", ") in str(error) else place
            gone = self._unreachable(peer, f"it cannot be reached ({error}{where}){advice}")
            raise gone from None  # it says all that the errors below it do
        return self._open_channel(peer, connection, decoder)

    def _open(self, peer: WorkerInfo) -> tuple[Connection, FrameDecoder]:
        """A connection on which both sides know each other. One that breaks meanwhile is made anew:
        whoever has ended does not let anybody connect."""
        bound = longest_silence_seconds(self._core)
        for again in range(_GREETINGS, 0, -1):
            connection = self._directory.connect(peer, bound)
            self._greeting[connection] = peer
            self.liveness.start()
            try:
                if self._closed:  # in the meantime: `close` may not have seen this connection
                    raise ConnectionAbortedError("this worker has shut down")
                return connection, greet(self._core, peer, connection)
            except BaseException as error:
                connection.close()
                broke = isinstance(error, (ConnectionResetError, BrokenPipeError))
                if again == 1 or not broke or self.is_lost(peer.worker):
                    raise
            finally:
                self._greeting.pop(connection, None)
        raise AssertionError("the last attempt returns or raises")

    def refusal(self, peer: WorkerInfo, connection: Connection) -> str:
        """Greets a worker that passes for dead, on a fresh connection, which is closed then.
        Returns the words with which it says that it holds this one for dead; else nothing."""
        self._greeting[connection] = peer
        try:
            if not self._closed:
                greet(self._core, peer, connection)
        except ConnectionRefusedError as error:
            return str(error) if str(error).startswith(GIVEN_UP) else ""
        except (OSError, LockstitchError):
            return ""
        finally:
            self._greeting.pop(connection, None)
            connection.close()
        return ""

    def _unreachable(self, peer: WorkerInfo, cause: str) -> PeerDiedError:
        broke = self.breakages.cause(peer.worker)
        cause = f"{broke}{self._directory.elsewhere(peer.worker)}" if broke else cause
        self.lose(peer, PeerDiedError(peer.name, cause))
        lost = self._lost.get(peer.worker)  # perhaps something else has shown it before
        return PeerDiedError(peer.name, cause) if lost is None else copy.copy(lost)

    def judge(self, hello: Hello) -> str:
        """Why a caller that belongs to this job cannot be served; empty if it can."""
        unfit = why_unfit(hello)
        if unfit:
            return unfit
        if hello.worker in self._lost:
            self.refused += 1
            return f"{GIVEN_UP}: {self._lost[hello.worker].cause}"
        return ""

    def note_incoming(self, caller: IncomingConnection) -> None:
        """A peer has connected, and is who it says."""
        self._incoming.add(caller)
        self._callers[caller.peer.worker] = caller
        self.liveness.start()
        if self._closed:
            caller.close()

    def caller(self, worker: WorkerId) -> IncomingConnection | None:
        """The connection on which `worker` calls us, if it does."""
        return self._callers.get(worker)

    # ------------------------------------------------------------ losing them

    def caller_lost(self, caller: IncomingConnection, cause: BaseException) -> None:
        """The connection on which a peer called us has ended; harmless when repeated."""
        peer = caller.peer
        try:
            self._incoming.remove(caller)
        except KeyError:
            return
        if self._callers.get(peer.worker) is caller:
            del self._callers[peer.worker]
            for callback in self._on_caller_gone:
                callback(peer.worker)
        if not (self._closed or self.is_lost(peer.worker)):
            self.breakages.judge_caller(peer, cause)
        if not isinstance(cause, ConnectionError):
            self._core.report(cause)

    def channel_broke(self, channel: StreamChannel, cause: BaseException) -> None:
        """The connection on which we call a peer has ended."""
        worker = channel.peer.worker
        with self._breaking:
            if self._channels.get(worker) is not channel:
                return
            del self._channels[worker]
        if not self._closed:
            self.breakages.judge(channel, cause)

    def verdict(self, channel: StreamChannel) -> RpcError:
        """See `Breakages.verdict`."""
        return self.breakages.verdict(channel)

    def lose(self, peer: WorkerInfo, error: PeerDiedError, *, at_once: bool = False) -> None:
        """A peer is gone. What it has answered just before still counts, unless `at_once`."""
        if self._closed or self._lost.setdefault(peer.worker, error) is not error:
            return
        _log.info("%s", error)
        channel = self._channels.pop(peer.worker, None)
        if channel is not None:
            channel.end(error, at_once=at_once)
        self.breakages.end(peer.worker, error)
        for callback in self._on_lost:
            self._core.spawn(lambda callback=callback: callback(peer.worker, error))  # type: ignore[misc]

    def cut_off(self, peer: WorkerInfo, cause: str) -> None:
        """A peer is given up, though its connections stand: nothing is said or heard any more."""
        error = PeerDiedError(peer.name, f"{cause}{self._directory.elsewhere(peer.worker)}")
        self.lose(peer, error, at_once=True)
        for connection, other in self._greeting.copy().items():
            if other.worker == peer.worker:
                connection.close()
        caller = self._callers.pop(peer.worker, None)
        if caller is not None:
            self._incoming.discard(caller)
            caller.close()

    def signs_of_life(self, worker: WorkerId) -> tuple[object, ...]:
        """Values that differ from those of before if that worker has done something since."""
        ends = (self._channels.get(worker), self._callers.get(worker))
        return tuple(sign for end in ends if end is not None for sign in end.signs_of_life())

    def note_leave(self, sender: WorkerId, _message: Leave) -> None:
        """A peer has shut down in good order."""
        caller = self._callers.get(sender)
        peer = caller.peer if caller is not None else self.info_of(sender)
        self.lose(peer, PeerLeftError(peer.name))

    def is_lost(self, worker: WorkerId) -> bool:
        """Whether that worker is known to be gone."""
        return worker in self._lost

    def on_lost(self, callback: Callable[[WorkerId, PeerDiedError], None]) -> None:
        """Calls `callback(worker, error)`, on a thread of the pool, when a peer is lost."""
        self._on_lost.append(callback)

    def on_caller_gone(self, callback: Callable[[WorkerId], None]) -> None:
        """Calls `callback(worker)` when the connection on which a peer calls us has ended."""
        self._on_caller_gone.append(callback)

    def leave(self, timeout_seconds: float) -> None:
        """Tells all who are connected that this worker goes: on each connection, since whichever
        ends first at the other side should not pass for a death. Those who take in nothing are
        waited for so long, all together."""
        goodbye = Leave(self._core.id)
        ends: list[StreamChannel | IncomingConnection] = list(self._callers.values())
        ends += [each for each in self.channels() if isinstance(each, StreamChannel)]
        end_of_waiting = time.monotonic() + timeout_seconds
        for end in ends:
            with contextlib.suppress(ConnectionError, LockstitchError):  # it has left before
                end.say_at_last(goodbye, max(0.0, end_of_waiting - time.monotonic()) / 2)
        self._closed = True

    def close(self) -> None:
        """Ends all connections, and what waits on them."""
        gone = PeerDiedError(self._core.info.name, "this worker has shut down")
        channels = self.channels()
        for channel in channels:  # nothing is added any more to what has to fail
            channel.error = gone
            channel.close()
        for connection in list(self._greeting):
            connection.close()
        for caller in list(self._incoming):
            caller.close()
        for channel in channels:
            if channel.outstanding < _MANY:
                channel.fail_all(gone)
            else:  # takes longer than somebody may want to wait who leaves
                self._core.spawn(partial(channel.fail_all, gone))
