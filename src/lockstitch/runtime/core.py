"""What all parts of one agent share: who this worker is, its options, clock, threads and memory."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lockstitch.devices.maps import DeviceMap
from lockstitch.errors import print_error, repr_of, traceback_of
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.memory.pools import WarmBuffers, default_capacity
from lockstitch.runtime.event_loop import EventLoop
from lockstitch.runtime.thread_pool import ThreadPool
from lockstitch.runtime.timer import Deadlines, Timer
from lockstitch.wire.authentication import AuthenticatedFrameDecoder
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.frames import DEFAULT_LIMITS, FrameLimits
from lockstitch.wire.messages import Message

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from lockstitch.clock import Clock
    from lockstitch.link.handshake import SessionKeys
    from lockstitch.transport.base import Connection, Poller
    from lockstitch.trust.registry import Registry
    from lockstitch.trust.secret import Secret

_LEAST_SECONDS: Final = 0.005

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
    `memory.pools.default_capacity`."""
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


class Core:
    """See the module. `enter` runs first on every thread of the pool; `sweep` ends the requests
    whose time is over, see `Deadlines`."""

    def __init__(
        self,
        info: WorkerInfo,
        clock: Clock,
        options: AgentOptions,
        poller: Poller,
        enter: Callable[[], None],
        sweep: Callable[[float], float | None],
    ) -> None:
        self.info = info
        self.id = info.worker
        self.clock = clock
        self.now = clock.now
        self.options = options
        self.limits = options.limits
        self.allowed = options.registry
        self.send_filter: SendFilter | None = None
        self.failures: list[str] = []
        self.is_closed = False
        """Whether this worker has left."""
        self.timer = Timer(clock, info.name, self.report)
        self.deadlines = Deadlines(self.timer, clock, sweep)
        self.thread_pool = ThreadPool(info.name, options.num_threads, poller, enter, self.report)
        self.event_loop = EventLoop(info.name, enter)
        self.apart: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads that are not of the pool, and end when this worker leaves."""
        capacity = options.buffer_pool_bytes
        self.buffers = WarmBuffers(default_capacity() if capacity is None else capacity)
        self.buffers.trim_by(self.call_later)
        self.device_maps: dict[WorkerId, DeviceMap] = {}
        """Those of peers that a device map names."""
        self._poller = poller
        self._ends_at = math.inf

    def spawn(self, task: Callable[[], None]) -> None:
        """Runs `task` on a thread of the pool, never behind user functions."""
        self.thread_pool.spawn(task)

    def blocked(self) -> AbstractContextManager[None]:
        """A context manager around waits: others may read and run meanwhile."""
        return self.thread_pool.blocked()

    def call_later(self, seconds: float, task: Callable[[], None]) -> None:
        """Runs a short `task` on the timer's thread after `seconds` of the worker's clock."""
        self.timer.call_later(seconds, task)

    def note(self, event: str, detail: str) -> None:
        """Keeps a line about something that went wrong and that nobody waits for."""
        self.failures.append(f"{event}: {detail}")
        del self.failures[:-100]

    def report(self, error: BaseException) -> None:
        """An error that no caller can be told: printed, and kept for `statistics`."""
        self.note("error", repr_of(error))
        if not self.is_closed:
            print_error(error, traceback_of(error))

    def device_map(self, peer: WorkerInfo) -> DeviceMap | None:
        """What the device map for that peer says; None where there is none."""
        known = self.options.device_maps.get(peer.name)
        if known:
            return self.device_maps.setdefault(peer.worker, DeviceMap(peer.name, known))
        return None

    def decoder(self, connection: Connection, keys: SessionKeys | None = None) -> FrameDecoder:
        """What makes messages of that which arrives on a connection. Where others might reach into
        it, they are authenticated with one of `keys`; the other is for those that leave."""
        is_strict = self.allowed is not None or connection.is_exposed
        if keys is None or not connection.is_exposed:
            return FrameDecoder(
                self.limits,
                window=connection.window,
                allocate=self.buffers.take,
                is_strict=is_strict,
            )
        return AuthenticatedFrameDecoder(
            keys.incoming, self.limits, allocate=self.buffers.take, is_strict=is_strict
        )

    def end_within(self, seconds: float) -> None:
        """All that is left to be done has so many seconds."""
        self._ends_at = time.monotonic() + seconds

    def remaining_seconds(self, most_seconds: float) -> float:
        """How long a step of the end may wait: so long, or half of what is left for all of them."""
        return max(_LEAST_SECONDS, min(most_seconds, (self._ends_at - time.monotonic()) / 2))

    def close(self, timer_seconds: float, pool_seconds: float) -> list[str]:
        """Ends all threads. Returns the names of those that still run user code when the time is
        over; 0 seconds for the pool: it is not waited for."""
        self.timer.close(self.remaining_seconds(timer_seconds))
        loop = self.event_loop.close(self.remaining_seconds(pool_seconds) if pool_seconds else 0)
        remaining = self.thread_pool.close(
            self.remaining_seconds(pool_seconds) if pool_seconds else 0
        )
        for thread in list(self.apart):
            if thread is not threading.current_thread() and pool_seconds:
                thread.join(self.remaining_seconds(pool_seconds))
        self._poller.close()
        left = [*loop, *[thread for thread in self.apart if thread.is_alive()]]
        return [*remaining, *[thread.name for thread in left]]

    def living(self) -> list[threading.Thread]:
        """The threads that have not ended."""
        threads = [*self.thread_pool.living(), *self.timer.living()]
        return [*threads, *self.event_loop.living(), *self.apart]
