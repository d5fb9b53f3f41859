"""A worker: one participant of the job, with everything that it owns.

Module functions such as `rpc_sync` look up `current_worker()`: the worker whose thread this is, or
one made active by `Worker.active()`, or else the process's own. So several workers can live in one
process, and a cluster of five is a test without ports.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.attach.logs import ProcessLog
from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.errors import NotInitializedError
from lockstitch.imports import IMPORTS
from lockstitch.runtime.agent import Agent
from lockstitch.runtime.core import AgentOptions
from lockstitch.runtime.ending import end_threads, keep_asleep, stand_still_instead_of_aborting
from lockstitch.wire.encodings import PicklingRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.runtime.peers import Directory
    from lockstitch.transport.base import Transport

S = TypeVar("S")

_log = ProcessLog(__name__)

_active: ContextVar[Worker | None] = ContextVar("lockstitch_worker", default=None)


class Process:
    """The process's own worker, the one that `init_rpc` makes."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.before_worker: list[Callable[[Worker], None]] = []
        """What is to be done with the process's next worker, asked for before there was one."""
        self.has_ended = False
        """Whether a worker of this process has been closed, and none was made since."""
        self.parents: str | None = None
        """The name of the worker that this process's parent had when it was forked."""
        self._left_running: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self.forget)
        atexit.register(self.end)

    def forget(self) -> None:
        """A forked child begins without a worker: its parent's threads are not its own."""
        worker, self.worker = self.worker, None
        self.parents = self.parents if worker is None else worker.name
        self.has_ended = False
        _active.set(None)
        for each in (worker, *list(_alive)):
            if each is not None:
                each.abandoned = True
        _alive.clear()
        self._left_running.clear()

    def note_left_running(self, threads: Iterable[threading.Thread]) -> None:
        """A worker is closed, but functions that others called still run."""
        self._left_running.update(threads)

    def end(self) -> None:
        """The interpreter ends: so do all workers, and whatever runs in their threads."""
        try:
            for worker in list(_alive):
                worker.close(0)
            keep_asleep(end_threads(self._left_running))
        except BaseException:  # Ctrl-C once more: nobody waits for those threads now
            stand_still_instead_of_aborting()
            raise


_alive: weakref.WeakSet[Worker] = weakref.WeakSet()
PROCESS = Process()


class Worker:
    """See the module. `start` it when all services are plugged in, `close` it in the end."""

    def __init__(
        self,
        info: WorkerInfo,
        directory: Directory,
        transport: Transport,
        *,
        clock: Clock = SYSTEM_CLOCK,
        options: AgentOptions | None = None,
    ) -> None:
        self.info = info
        self.clock = clock
        self.pickling = PicklingRegistry()
        self.pickling.find = IMPORTS.find
        self.abandoned = False
        self.is_ending = False
        """Whether `shutdown` has begun to close it."""
        self._closing = threading.RLock()
        self._services: dict[type[Any], object] = {}
        self.agent = Agent(
            info,
            clock,
            self.pickling,
            self.adopt_thread,
            directory,
            transport,
            options or AgentOptions(),
        )
        _alive.add(self)

    def __repr__(self) -> str:
        return f"<Worker {self.info.name!r} · rank {self.info.id} · {self.agent!r}>"

    @property
    def id(self) -> WorkerId:
        """The rank and the generation of this worker."""
        return self.info.worker

    @property
    def name(self) -> str:
        """The name under which others call this worker."""
        return self.info.name

    def plug(self, service: object) -> None:
        """Adds a service, to be found by its type."""
        self._services[type(service)] = service

    def service(self, cls: type[S]) -> S:
        """The service of that type. Raises `LookupError` when none is plugged in."""
        for known in (cls, *self._services):
            service = self._services.get(known)
            if service is not None and (known is cls or issubclass(known, cls)):
                return service  # type: ignore[return-value]
        raise LookupError(f"worker {self.name!r} has no {cls.__name__}")

    def obtain(self, cls: type[S], make: Callable[[], S]) -> S:
        """The service of exactly that type, plugged in now if it is the first time."""
        return self._services.setdefault(cls, make())  # type: ignore[return-value]

    def services(self) -> list[object]:
        """All services that are plugged in."""
        return list(self._services.values())

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within, `current_worker()` is this worker."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)

    def adopt_thread(self) -> None:
        """Makes this the current worker of the calling thread, for good: it is one of our pool."""
        _active.set(self)

    def start(self) -> None:
        """Begins to serve."""
        self.agent.start()

    def close(self, timeout_seconds: float = 5.0, within_seconds: float = math.inf) -> list[str]:
        """Leaves; harmless when repeated. See `Agent.close`."""
        with self._closing:
            if not self.agent.is_closed:
                _log.info("worker %r leaves", self.name)
            remaining = self.agent.close(timeout_seconds, within_seconds)
            PROCESS.note_left_running(self.agent.core.living())
            _alive.discard(self)
            if PROCESS.worker is self:
                PROCESS.worker = None
                PROCESS.has_ended = True
            return remaining

    def close_apart(self) -> None:
        """An interrupt has struck what was to close it: another thread does."""
        threading.Thread(target=self.close, name=f"{self.name}-leaving", daemon=True).start()


def current_worker() -> Worker:
    """The worker that the calling code belongs to. Raises `NotInitializedError`."""
    worker = _active.get() or PROCESS.worker
    if worker is None:
        raise NotInitializedError(f"RPC has not been initialized{_why_there_is_none()}")
    return worker


def _why_there_is_none() -> str:
    if PROCESS.has_ended:
        return ": this process's worker has shut down. Call nothing after that."
    if PROCESS.parents is not None:
        return (
            f" in this process, which was forked from worker {PROCESS.parents!r}: the connections "
            "stay with that one. Let it make the call, or call init_rpc here, under another name."
        )
    return ". Call init_rpc before anything else, and nothing after shutdown."


def living_workers() -> list[Worker]:
    """All workers of this process that were not closed."""
    return list(_alive)


def has_current_worker() -> bool:
    """Whether `current_worker` would return one."""
    return (_active.get() or PROCESS.worker) is not None
