"""The agent of a worker: makes its calls, sends its messages, serves its peers.

    call_sync / call_async ─► Channel ─► wire ─► transport ⇢ IncomingConnection ─► Invocation
                                                                     Reply ◄────────┘

The agent knows its peers by a `Directory`, connects to them on first use, and keeps one channel to
each. References and distributed autograd plug in from above: by handlers for their messages, by
servers for their requests, and by the `Interceptor`. How it calls: `runtime.calling`; how it packs
values: `runtime.packing`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lockstitch.devices.maps import DeviceMap
from lockstitch.errors import (
    ConnectionLostError,
    PeerDiedError,
    RemoteProtocolError,
)
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.runtime.calling import Calling
from lockstitch.runtime.crew import Crew
from lockstitch.runtime.incoming import Acceptor, Requests, RequestsFromSelf
from lockstitch.runtime.liveness import Liveness
from lockstitch.runtime.loopback import Loopback
from lockstitch.runtime.newcomers import Newcomers
from lockstitch.runtime.peers import Peers
from lockstitch.runtime.served import Served
from lockstitch.runtime.statistics import AgentStatistics
from lockstitch.runtime.timer import Deadlines, Timer
from lockstitch.transport.pools import default_capacity
from lockstitch.transport.warm import WarmBuffers
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.frames import DEFAULT_LIMITS, FrameLimits
from lockstitch.wire.messages import (
    Cancel,
    Leave,
    Message,
)
from lockstitch.wire.seals import SealedFrameDecoder

if TYPE_CHECKING:
    import torch

    from lockstitch.runtime.interceptor import Interceptor
    from lockstitch.runtime.invocation import Invocation
    from lockstitch.runtime.peers import Directory
    from lockstitch.runtime.way_back import WayBack
    from lockstitch.runtime.worker import Worker
    from lockstitch.transport.base import Connection, Listener, Transport
    from lockstitch.transport.handshake import SessionKeys
    from lockstitch.trust.registry import Registry
    from lockstitch.trust.secret import Secret

_LEAST_SECONDS: Final = 0.005
_STUCK_SECONDS: Final = 0.2
_TIMER_SECONDS: Final = 5.0

T = TypeVar("T")
M = TypeVar("M", bound=Message)

SendFilter = Callable[[WorkerId, Message, "Callable[[Message], None]"], None]
"""Called with receiver, message and the function that sends it: may do so now, later, or never, or
raise a `ConnectionError`. For injected faults; sees requests and control messages, not answers."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """`num_threads`: how many user functions run at once; `default_timeout`: in seconds, 0 for
    none."""

    num_threads: int = 16
    default_timeout: float = 60.0
    heartbeat_timeout: float = 0.0
    """After how many seconds of silence a peer that somebody waits for is given up; 0: never."""
    bytes_in_flight: int = 1 << 30
    """How much the tensors of unanswered requests to one peer may hold."""
    calls_in_flight: int = 1 << 16
    """How many calls to one peer may be unanswered before a thread that serves nobody waits."""
    limits: FrameLimits = DEFAULT_LIMITS
    buffer_pool_bytes: int | None = None
    """How much warm memory is kept for large tensors that arrive in streams; None: see
    `transport.pools.default_capacity`."""
    secret: Secret | None = None
    """What callers have to prove that they have; None: nothing is asked of them."""
    registry: Registry | None = None
    """What peers may call and make here; None: anything."""
    handshake_seconds: float = 10.0
    """So long may a caller take to prove itself."""
    unproved_connections: int = 128
    """So many may be about to; one more pushes the oldest of them out."""
    device_maps: Mapping[str, Mapping[torch.device, torch.device]] = field(default_factory=dict)
    """For each callee's name, which device of ours becomes which of its."""
    interned_functions: int = 4096
    """How many functions each connection remembers by number; with 0 every call spells its function
    out, so that any message may be lost or delayed without harm to those behind it."""


class Agent(Calling):
    """See the module."""

    def __init__(
        self, worker: Worker, directory: Directory, transport: Transport, options: AgentOptions
    ) -> None:
        self.info = worker.info
        self.id = worker.info.worker
        self.clock = worker.clock
        self.options = options
        self.limits = options.limits
        self.default_timeout = options.default_timeout
        self.interceptor: Interceptor | None = None
        self.send_filter: SendFilter | None = None
        self.before_call: Callable[[], None] | None = None
        """For what should be told before long, but need not be told at once. It must be short."""
        self.handlers: dict[type[Message], Callable[[WorkerId, Any], None]] = {}
        self.servers: dict[type[Message], Callable[[Invocation], None]] = {}
        self.served = Served()
        self.failures: list[str] = []
        self.allowed = worker.pickling.allowed = options.registry
        self._pickling = worker.pickling
        self._on_close: list[Callable[[], None]] = []
        self._acceptors: list[Acceptor] = []
        self._closed = False
        self._ends_at = math.inf
        self.peers = Peers(self, directory)
        self._poller = transport.poller()
        self.timer = Timer(self.clock, self.info.name, self.report)
        self.deadlines = Deadlines(self.timer, self.clock, self._sweep)
        self.crew = Crew(
            self.info.name, options.num_threads, self._poller, worker.adopt_thread, self.report
        )
        capacity = options.buffer_pool_bytes
        self.buffers = WarmBuffers(default_capacity() if capacity is None else capacity)
        self.buffers.trim_by(self.call_later)
        self.liveness = Liveness(self, options.heartbeat_timeout)
        self.add_concern(self._waited_for)
        self.device_maps: dict[WorkerId, DeviceMap] = {}
        """Those of peers that a device map names."""
        self.newcomers = Newcomers(self)
        self.handlers[Cancel] = self._note_cancel
        self.handlers[Leave] = self.peers.note_leave
        self.on_peer_lost(lambda peer, _error: self.served.drop(peer))
        self.peers.add(self.id, Loopback(self))

    def __repr__(self) -> str:
        return (
            f"<Agent {self.info.name!r} · {len(self.peers.channels()) - 1} peers · "
            f"{self.outstanding} calls pending · {len(self.served)} served>"
        )

    @property
    def outstanding(self) -> int:
        """How many requests of ours have no answer yet."""
        return sum(channel.outstanding for channel in self.peers.channels())

    @property
    def activity(self) -> int:
        """How many requests were sent and served so far; it only grows."""
        return self.served.finished + sum(each.requested for each in self.peers.channels())

    @property
    def is_closed(self) -> bool:
        """Whether this worker has left."""
        return self._closed

    def is_at_rest(self) -> bool:
        """Whether no request is unanswered or being served, and no thread of the crew is busy."""
        return not self.outstanding and not self.served and self.crew.is_resting

    def _waited_for(self) -> set[WorkerId]:
        """Peers that owe answers or have something to take in, and those that wait for an answer,
        who might be gone meanwhile."""
        channels = [
            each
            for each in self.peers.channels()
            if each.outstanding or each.listeners or each.is_behind
        ]
        callers = {each.caller for each in self.served.list()}
        return callers.union(each.peer.worker for each in channels)

    # ------------------------------------------------------------ peers

    def device_map(self, peer: WorkerInfo) -> DeviceMap | None:
        """What the device map for that peer says; None where there is none."""
        known = self.options.device_maps.get(peer.name)
        if known:
            return self.device_maps.setdefault(peer.worker, DeviceMap(peer.name, known))
        return None

    def accept_at(self, listener: Listener) -> None:
        """Lets callers in at `listener`; call it before the listener's address is published."""
        self._acceptors.append(Acceptor(self, listener))

    def start(self) -> None:
        """Begins to serve."""
        self.crew.start()

    def resolve(self, to: str | int | WorkerInfo) -> WorkerInfo:
        """See `Peers.resolve`."""
        return self.peers.resolve(to)

    def info_of(self, worker: WorkerId) -> WorkerInfo:
        """See `Peers.info_of`."""
        return self.peers.info_of(worker)

    def members(self) -> Sequence[WorkerInfo]:
        """All workers that are known now."""
        return self.peers.members()

    def on_peer_lost(self, callback: Callable[[WorkerId, PeerDiedError], None]) -> None:
        """Calls `callback(worker, error)`, on a thread of the crew, when a peer is lost."""
        self.peers.on_lost(callback)

    def is_lost(self, worker: WorkerId) -> bool:
        """Whether that worker is known to be gone."""
        return self.peers.is_lost(worker)

    def on_connection_lost(self, callback: Callable[[WorkerId, ConnectionLostError], None]) -> None:
        """See `Breakages.on_broken`."""
        self.peers.breakages.on_broken(callback)

    def add_concern(self, workers: Callable[[], Iterable[WorkerId]]) -> None:
        """See `Liveness.add_concern`."""
        self.liveness.add_concern(workers)

    def requests_from(self, peer: WorkerInfo, channel: Loopback) -> Requests:
        """The receiving end for requests to oneself."""
        return RequestsFromSelf(self, peer, channel)

    def receive_from_self(self, message: Message, requests: Requests) -> None:
        """A message to oneself has arrived."""
        invocation = requests.invocation(message)
        if invocation is not None:
            self.crew.submit(invocation.serve)
        else:
            self.handlers[type(message)](self.id, message)

    def decoder(self, connection: Connection, keys: SessionKeys | None = None) -> FrameDecoder:
        """What makes messages of that which arrives on a connection. Where others might reach into
        it, they are sealed with one of `keys`; the other is for those that leave."""
        is_strict = self.allowed is not None or connection.is_exposed
        if keys is None or not connection.is_exposed:
            return FrameDecoder(
                self.limits,
                window=connection.window,
                allocate=self.buffers.take,
                is_strict=is_strict,
            )
        return SealedFrameDecoder(
            keys.incoming, self.limits, allocate=self.buffers.take, is_strict=is_strict
        )

    # ------------------------------------------------------------ plugging in

    def handle(self, cls: type[M], handler: Callable[[WorkerId, M], None]) -> None:
        """Has control messages of a class handled by `handler(sender, message)` on the thread that
        reads them: it must be short, not block, and run no user code."""
        self.handlers[cls] = handler

    def serve(self, cls: type[Message], server: Callable[[Invocation], None]) -> None:
        """Has requests of a class served by `server(invocation)`, which may run user code."""
        self.servers[cls] = server

    def spawn(self, task: Callable[[], None]) -> None:
        """Runs `task` on a thread of the crew, never behind user functions."""
        self.crew.spawn(task)

    def blocked(self) -> Any:
        """A context manager around waits: others may read and run meanwhile."""
        return self.crew.blocked()

    def call_later(self, seconds: float, task: Callable[[], None]) -> None:
        """Runs a short `task` on the timer's thread after `seconds` of the worker's clock."""
        self.timer.call_later(seconds, task)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Runs `callback` when the worker closes, while its connections still stand."""
        self._on_close.append(callback)

    def note(self, event: str, detail: str) -> None:
        """Keeps a line about something that went wrong and that nobody waits for."""
        self.failures.append(f"{event}: {detail}")
        del self.failures[:-100]

    def report(self, error: BaseException) -> None:
        """An error that no caller can be told: printed, and kept for `statistics`."""
        self.note("error", repr(error))
        if not self._closed:
            sys.excepthook(type(error), error, error.__traceback__)

    def statistics(self) -> AgentStatistics:
        """A picture of the moment."""
        return AgentStatistics(
            outstanding=self.outstanding,
            served=len(self.served),
            finished=self.served.finished,
            threads=self.crew.threads,
            backlog=self.crew.backlog,
            refused=self.peers.refused,
            repeated=self.served.repeated,
            failures=tuple(self.failures),
            strangers=self.newcomers.refused(),
        )

    # ------------------------------------------------------------ requests

    def send(self, to: WorkerId, message: Message) -> None:
        """Sends a control message. Raises `PeerDiedError` when that worker is gone."""
        self.peers.channel(to).post(message)

    def listen(self, to: WorkerId) -> WayBack | None:
        """Begins to listen to a worker on the connection on which we call it, None where that is
        not possible. Raises `PeerDiedError`."""
        return self.peers.channel(to).way_back()

    def _note_cancel(self, sender: WorkerId, message: Cancel) -> None:
        caller = self.peers.caller(sender)
        if caller is not None:
            caller.arrivals.give_up(message.request)
            self.served.cancel(sender, message.request)

    def send_back(self, to: WorkerId, message: Message) -> None:
        """`send`, to a worker that listens (`runtime.way_back`)."""
        caller = self.peers.caller(to)
        if caller is None:
            self.send(to, message)
            return
        try:
            if self.send_filter is None:
                caller.reply(message)
            else:
                self.send_filter(to, message, caller.reply)
        except PeerDiedError:
            raise
        except ConnectionError as error:
            raise ConnectionLostError(caller.peer.name, str(error)) from error

    def handle_on_way_back(self, sender: WorkerId, message: Message) -> None:
        """A message that is no answer has come where answers belong."""
        handler = self.handlers.get(type(message))
        if handler is None:
            raise RemoteProtocolError(f"a {type(message).__name__} came where replies belong")
        handler(sender, message)

    def _sweep(self, now: float) -> float | None:
        deadlines = [channel.sweep(now) for channel in self.peers.channels()]
        return min((each for each in deadlines if each is not None), default=None)

    # ------------------------------------------------------------ the end

    def patience(self, most_seconds: float) -> float:
        """How long a step of the end may wait: so long, or half of what is left for all of them."""
        return max(_LEAST_SECONDS, min(most_seconds, (self._ends_at - time.monotonic()) / 2))

    def close(self, timeout_seconds: float = 5.0, within_seconds: float = math.inf) -> list[str]:
        """Leaves: tells the peers, ends what waits, closes connections and threads. Threads have
        `timeout_seconds` to end, and all of it together `within_seconds`.

        Returns the names of threads that still run user code when the time is over.
        """
        if self._closed:
            return []
        self._ends_at = time.monotonic() + within_seconds
        for callback in self._on_close:
            callback()
        self.peers.leave(self.patience(_STUCK_SECONDS))
        self._closed = True
        for acceptor in self._acceptors:
            acceptor.close()
        self.newcomers.close()
        self.crew.drop_backlog()
        self.peers.close()
        self.timer.close(self.patience(_TIMER_SECONDS))
        remaining = self.crew.close(self.patience(timeout_seconds) if timeout_seconds else 0)
        self._poller.close()
        return remaining
