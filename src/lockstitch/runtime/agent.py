"""The agent of a worker: what goes out, what comes in, and who the peers are.

    Outgoing ─► Channel ─► wire ─► transport ⇢ IncomingConnection ─► Invocation ─┐
        ▲                                                                        │
        └──────────── Reply ◄──────────────────────────────────────── Serving ◄──┘

- `outgoing` makes calls and other requests, and gives their answers to whoever waits;
- `serving` knows who serves which kind of message, and what is being served;
- `peers` knows who the others are, connects on first use, and finds out who is gone;
- `values` packs what is sent and opens what has come;
- `core` is what all of these share: options, clock, threads.

References and distributed autograd plug in from above: by handlers for their messages, by servers
for their requests, and by the `Interceptor`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from lockstitch.errors import ConnectionLostError, PeerDiedError
from lockstitch.runtime.answers import Answers
from lockstitch.runtime.core import AgentOptions, Core, SendFilter
from lockstitch.runtime.incoming import Acceptor, IncomingConnection, RequestsFromSelf
from lockstitch.runtime.loopback import Loopback
from lockstitch.runtime.outgoing import Outgoing
from lockstitch.runtime.packing import Values
from lockstitch.runtime.peers import Peers
from lockstitch.runtime.pending_handshakes import PendingHandshakes
from lockstitch.runtime.serving import Serving
from lockstitch.runtime.statistics import AgentStatistics
from lockstitch.runtime.stream_channel import StreamChannel
from lockstitch.wire.messages import Alive, Cancel, Heartbeat, Leave, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from lockstitch.clock import Clock
    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.link.handshake import SessionKeys
    from lockstitch.runtime.arrival import Arrival
    from lockstitch.runtime.channel import Channel
    from lockstitch.runtime.interceptor import Interceptor
    from lockstitch.runtime.invocation import Invocation
    from lockstitch.runtime.peers import Directory
    from lockstitch.runtime.reply_side_push import PushListener
    from lockstitch.transport.base import Connection, Listener, Transport
    from lockstitch.wire.decoding import FrameDecoder
    from lockstitch.wire.encodings import PicklingRegistry

__all__ = ["Agent", "AgentOptions", "SendFilter"]

_STUCK_SECONDS: Final = 0.2
_TIMER_SECONDS: Final = 5.0

M = TypeVar("M", bound=Message)


class Agent:
    """See the module. `enter` runs first on each of its threads."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it is made of
        self,
        info: WorkerInfo,
        clock: Clock,
        pickling: PicklingRegistry,
        enter: Callable[[], None],
        directory: Directory,
        transport: Transport,
        options: AgentOptions,
    ) -> None:
        pickling.allowed = options.registry
        self.core = core = Core(info, clock, options, transport.poller(), enter, self._sweep)
        self.info, self.id, self.clock, self.options = info, info.worker, clock, options
        self.thread_pool, self.timer, self.buffers = core.thread_pool, core.timer, core.buffers
        self.allowed = core.allowed
        self.values = Values(core.thread_pool, pickling)
        self.peers = Peers(core, directory, self._open_channel)
        self.serving = Serving(core, self.values, self.peers.is_lost)
        self.running_requests = self.serving.running
        self.liveness = self.peers.liveness
        self.answers = Answers(core, self.values, self.peers, self.serving.handle)
        self.outgoing = Outgoing(core, self.values, self.peers, self.answers)
        self.pending_handshakes = PendingHandshakes(core, self.peers.judge, self._let_in)
        self._on_close: list[Callable[[], None]] = []
        self._acceptors: list[Acceptor] = []
        self._has_ended = False
        self.add_concern(self._waited_for)
        self.handle(Cancel, self._note_cancel)
        self.handle(Leave, self.peers.note_leave)
        self.handle(Heartbeat, self.liveness.note_heartbeat)
        self.handle(Alive, self.liveness.note_alive)
        self.peers.on_caller_gone(self.running_requests.drop)
        self.on_peer_lost(lambda peer, _error: self.running_requests.drop(peer))
        loopback = Loopback(core, self.answers, self._receive_from_self)
        self._from_self = RequestsFromSelf(self.serving, info, loopback.send)
        self.peers.add(self.id, loopback)

    def __repr__(self) -> str:
        return (
            f"<Agent {self.info.name!r} · {len(self.peers.channels()) - 1} peers · "
            f"{self.outstanding} calls pending · {len(self.running_requests)} served>"
        )

    @property
    def outstanding(self) -> int:
        """How many requests of ours have no answer yet."""
        return sum(channel.outstanding for channel in self.peers.channels())

    @property
    def requested(self) -> int:
        """How many requests were sent over the connections there are now."""
        return sum(each.requested for each in self.peers.channels())

    @property
    def activity(self) -> int:
        """How many requests were sent and served so far; it only grows."""
        return self.running_requests.finished + self.requested

    @property
    def is_closed(self) -> bool:
        """Whether this worker has left."""
        return self.core.is_closed

    @property
    def interceptor(self) -> Interceptor | None:
        """Sees each message with values: the seam for distributed autograd."""
        return self.values.interceptor

    @interceptor.setter
    def interceptor(self, interceptor: Interceptor | None) -> None:
        self.values.interceptor = interceptor

    @property
    def default_timeout(self) -> float:
        """In seconds, of calls that are given none; 0: none."""
        return self.outgoing.default_timeout

    @default_timeout.setter
    def default_timeout(self, seconds: float) -> None:
        self.outgoing.default_timeout = seconds

    def is_at_rest(self) -> bool:
        """Whether no request is unanswered or being served, and no thread of the pool is busy."""
        return not self.outstanding and not self.running_requests and self.thread_pool.is_resting

    def _waited_for(self) -> set[WorkerId]:
        """Peers that owe answers or have something to take in, and those that wait for an answer,
        who might be gone meanwhile."""
        channels = [
            each
            for each in self.peers.channels()
            if each.outstanding or each.listeners or each.is_behind
        ]
        callers = {each.caller for each in self.running_requests.list()}
        return callers.union(each.peer.worker for each in channels)

    # ------------------------------------------------------------ how its parts meet

    def _open_channel(
        self, peer: WorkerInfo, connection: Connection, decoder: FrameDecoder
    ) -> StreamChannel:
        return StreamChannel(self.core, peer, self.answers, self.peers, connection, decoder)

    def _let_in(
        self,
        caller: WorkerInfo,
        connection: Connection,
        keys: SessionKeys | None,
        welcome: bytes,
    ) -> None:
        IncomingConnection(self.serving, caller, self.peers, connection, keys).begin(welcome)

    def _receive_from_self(self, message: Message) -> None:
        invocation = self._from_self.invocation(message)
        if invocation is not None:
            self.thread_pool.submit(partial(self._serve_from_self, invocation))
        else:
            self.serving.handlers[type(message)](self.id, message)

    def _serve_from_self(self, invocation: Invocation) -> None:
        if self._from_self.may_begin(invocation):
            invocation.serve()

    def _sweep(self, now: float) -> float | None:
        deadlines = [channel.sweep(now) for channel in self.peers.channels()]
        return min((each for each in deadlines if each is not None), default=None)

    def _note_cancel(self, sender: WorkerId, message: Cancel) -> None:
        caller = self._from_self if sender == self.id else self.peers.caller(sender)
        if caller is not None:
            caller.give_up(message.request)
            self.running_requests.cancel(sender, message.request)

    # ------------------------------------------------------------ peers

    def accept_at(self, listener: Listener) -> None:
        """Lets callers in at `listener`; call it before the listener's address is published."""
        self._acceptors.append(Acceptor(self.core, listener, self.pending_handshakes))

    def start(self) -> None:
        """Begins to serve."""
        self.thread_pool.start()

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
        """Calls `callback(worker, error)`, on a thread of the pool, when a peer is lost."""
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

    # ------------------------------------------------------------ plugging in

    def handle(self, cls: type[M], handler: Callable[[WorkerId, M], None]) -> None:
        """Has control messages of a class handled by `handler(sender, message)` on the thread that
        reads them: it must be short, not block, and run no user code."""
        self.serving.handlers[cls] = handler

    def serve(self, cls: type[Message], server: Callable[[Invocation], None]) -> None:
        """Has requests of a class served by `server(invocation)`, which may run user code."""
        self.serving.servers[cls] = server

    def spawn(self, task: Callable[[], None]) -> None:
        """Runs `task` on a thread of the pool, never behind user functions."""
        self.thread_pool.spawn(task)

    def blocked(self) -> AbstractContextManager[None]:
        """A context manager around waits: others may read and run meanwhile."""
        return self.thread_pool.blocked()

    def wait_for(self, arrival: Arrival) -> None:
        """Blocks until `arrival` is there, which a message brings; see `ThreadPool.wait_for`."""
        self.thread_pool.wait_for(arrival)

    def bring(self, arrival: Arrival) -> None:
        """`arrival` is there; see `ThreadPool.bring`."""
        self.thread_pool.bring(arrival)

    def call_later(self, seconds: float, task: Callable[[], None]) -> None:
        """Runs a short `task` on the timer's thread after `seconds` of the worker's clock."""
        self.timer.call_later(seconds, task)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Runs `callback` when the worker closes, while its connections still stand."""
        self._on_close.append(callback)

    def note(self, event: str, detail: str) -> None:
        """Keeps a line about something that went wrong and that nobody waits for."""
        self.core.note(event, detail)

    def report(self, error: BaseException) -> None:
        """An error that no caller can be told: printed, and kept for `statistics`."""
        self.core.report(error)

    def statistics(self) -> AgentStatistics:
        """Counts what this agent does at this moment."""
        return AgentStatistics(
            outstanding=self.outstanding,
            served=len(self.running_requests),
            finished=self.running_requests.finished,
            threads=self.thread_pool.threads,
            backlog=self.thread_pool.backlog,
            refused=self.peers.refused,
            repeated=self.running_requests.repeated,
            failures=tuple(self.core.failures),
            strangers=self.pending_handshakes.refused(),
        )

    # ------------------------------------------------------------ messages

    def send(self, to: WorkerId, message: Message) -> None:
        """Sends a control message. Raises `PeerDiedError` when that worker is gone."""
        self.peers.channel(to).post(message)

    def send_back(self, to: WorkerId, message: Message) -> None:
        """`send`, to a worker that listens (`runtime.reply_side_push`)."""
        caller = self.peers.caller(to)
        if caller is None:
            self.send(to, message)
            return
        try:
            if self.core.send_filter is None:
                caller.reply(message)
            else:
                self.core.send_filter(to, message, caller.reply)
        except PeerDiedError:
            raise
        except ConnectionError as error:
            raise ConnectionLostError(caller.peer.name, str(error)) from error

    def listen(self, to: WorkerId) -> PushListener | None:
        """Begins to listen to a worker on the connection on which we call it, None where that is
        not possible. Raises `PeerDiedError`."""
        channel: Channel = self.peers.channel(to)
        return channel.listen_for_pushes()

    # ------------------------------------------------------------ the end

    def remaining_seconds(self, most_seconds: float) -> float:
        """See `Core.remaining_seconds`."""
        return self.core.remaining_seconds(most_seconds)

    def close(self, timeout_seconds: float = 5.0, within_seconds: float = math.inf) -> list[str]:
        """Leaves: tells the peers, ends what waits, closes connections and threads. Threads have
        `timeout_seconds` to end, and all of it together `within_seconds`.

        Returns the names of threads that still run user code when the time is over. Harmless when
        repeated, as it is where an interrupt has struck it.
        """
        if self._has_ended:
            return []
        self.core.end_within(within_seconds)
        if not self.is_closed:
            for callback in self._on_close:
                callback()
            self.peers.leave(self.remaining_seconds(_STUCK_SECONDS))
            self.core.is_closed = True
        for acceptor in self._acceptors:
            acceptor.close()
        self.pending_handshakes.close()
        self.thread_pool.drop_backlog()
        self.peers.close()
        remaining = self.core.close(_TIMER_SECONDS, timeout_seconds)
        self._has_ended = True
        return remaining
