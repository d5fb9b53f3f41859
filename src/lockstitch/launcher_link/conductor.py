"""Carries out what the `RankCoordinator` decides, wherever a job's workers are started.

    HostsFound, Ended ── post ─▶ conductor ─▶ RankCoordinator
    (from any thread)               │  ▲
                     Starter ◀──────┘  └──────▶ LauncherServer ◀─▶ workers
                     (start, stop)

Who starts and ends workers is a `Starter`: processes of this machine, a remote shell, an engine
such as Ray. The conductor knows no processes and no signals of its own process, and may run in any
thread. It is driven by `run`, or by a loop of somebody else's that sleeps in the same selector.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from lockstitch.attach.values import OtherWait
from lockstitch.clock import SYSTEM_CLOCK, earliest, seconds_until
from lockstitch.launcher_link.client import ADDRESS, PURPOSE, WORKER
from lockstitch.launcher_link.messages import (
    Message,
    RankAssignment,
    Ready,
    StoreRequest,
)
from lockstitch.launcher_link.rank_coordinator import (
    CameReady,
    CoordinatorOptions,
    Ended,
    Event,
    GiveUp,
    HostsFound,
    Instruction,
    RankCoordinator,
    Start,
    Stop,
    Tell,
    TimePassed,
)
from lockstitch.launcher_link.server import LauncherServer
from lockstitch.launcher_link.values import Values
from lockstitch.link.pulse import DEFAULT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from lockstitch.clock import Clock
    from lockstitch.launcher_link.slots import Slot
    from lockstitch.trust import Secret


# After so long it is told for whom the others wait.
_NOTICE_SECONDS: Final = 3.0


class Starter(Protocol):
    """Who starts workers somewhere. Neither method raises or waits: whatever becomes of a worker,
    and be it that it could not be started, is told by one `Ended`."""

    def start(self, worker: int, slot: Slot, environment: Mapping[str, str]) -> None:
        """Starts a worker in a slot. `environment` says where it is and how it reaches the
        conductor; it lacks the job's secret, which the starter hands over."""
        ...

    def stop(self, worker: int, number: signal.Signals) -> None:
        """Ends a worker, if it still runs: at once for SIGKILL, else in good order."""
        ...


@dataclass(frozen=True, slots=True)
class NewWorld:
    """A world that is about to meet: the host and the worker of each rank, and a port of rank 0's
    host that is kept for it."""

    generation: int
    hosts: tuple[str, ...]
    port: int
    workers: tuple[int, ...]


@dataclass(frozen=True)
class Surroundings:
    """What a conductor needs to know of where it runs."""

    listen_at: str
    """Where workers reach it: `unix:PATH` or `tcp:HOST:PORT`; port 0 for any that is free."""
    meet_at: Callable[[NewWorld], str]
    """Returns the store at which a world meets: `file://PATH` or `tcp://HOST:PORT`."""
    selector: selectors.BaseSelector | None = None
    """That of the loop which drives the conductor; None for one of its own, for `run`."""
    clock: Clock = SYSTEM_CLOCK
    heartbeat: float = DEFAULT_SECONDS
    """After how many seconds of silence a worker passes for lost, and is stopped; 0: never."""
    tell_of_silence: Callable[[int, str], None] = lambda _worker, _why: None
    """Called with such a worker, and why."""
    tell_of_wait: Callable[[str], None] = lambda _text: None
    """Called once in each wait for workers that do not come, after a few seconds: who, and for how
    long the others wait."""
    tell_of_world: Callable[[NewWorld], None] = lambda _world: None
    """Called when a world is about to meet."""
    give_up: Callable[[], None] | None = None
    """Called when the job has failed, to end all workers; None: the conductor stops them."""


class Conductor:
    """A job whose workers come and go. `secret` is the job's."""

    def __init__(
        self,
        options: CoordinatorOptions,
        secret: Secret,
        starter: Starter,
        surroundings: Surroundings,
    ) -> None:
        self._starter = starter
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._coordinator = RankCoordinator(options, self._clock.now())
        self._values = Values()
        self._ports: dict[int, int] = {}
        """What workers have said of their hosts, by worker."""
        self._posted: SimpleQueue[HostsFound | Ended] = SimpleQueue()
        self._owns_selector = surroundings.selector is None
        self._selector = surroundings.selector or selectors.DefaultSelector()
        self._is_closed = False
        self._tells_of_wait_at: float | None = None
        """Of the present wait for workers, if there is one; infinite once it has been told."""
        self.reason: str | None = None
        """Why the job has failed; None while it has not."""
        self.last_world: tuple[int, ...] = ()
        """The workers of the ranks that were last told to meet, by rank."""
        self._wake_end, self._waking_end = os.pipe()
        os.set_blocking(self._waking_end, False)
        self._selector.register(self._wake_end, selectors.EVENT_READ, self._take_posted)
        self.server = LauncherServer(
            self._selector,
            secret.of(PURPOSE),
            self._hear,
            surroundings.listen_at,
            self._clock,
            heartbeat=surroundings.heartbeat,
            note_silence=self._end_silent,
        )

    def __repr__(self) -> str:
        workers, world = len(self._coordinator.workers), self._coordinator.generation
        return f"<Conductor · {workers} workers · world {world}>"

    # ------------------------------------------------------------ from any thread

    def post(self, event: HostsFound | Ended) -> None:
        """Tells that there are other hosts, or that a worker has ended; it is handled in the loop,
        soon. From any thread; without effect after `close`."""
        self._posted.put(event)
        try:
            os.write(self._waking_end, b"\0")
        except BlockingIOError:  # it will wake up all the same
            pass
        except OSError:
            if not self._is_closed:
                raise

    # ------------------------------------------------------------ in the loop

    def run(self) -> None:
        """Runs the job until it is over: all workers have ended, or, where it has failed, have been
        stopped and ended."""
        while not self.is_over:
            for key, _ in self._selector.select(self.seconds_to_next()):
                key.data()
            self.pass_time()

    @property
    def is_over(self) -> bool:
        """Whether nobody is left and nobody will come."""
        return self._coordinator.is_over and self._posted.empty()

    @property
    def is_well(self) -> bool:
        """Whether a worker has finished since the last failure."""
        return self._coordinator.is_well

    def missing_results(self, results: Container[int]) -> str:
        """Returns in words which ranks of the last world are not in `results`, which has the
        workers that have returned something; empty words where none is missing. What workers have
        returned that are not of that world does not count."""
        if not self.last_world:
            return "the function has returned before the ranks had met: it is to call hvd.init()"
        missing = [rank for rank, worker in enumerate(self.last_world) if worker not in results]
        if not missing:
            return ""
        ranks = ", ".join(map(str, missing))
        return f"of {len(self.last_world)} ranks that met last these have returned nothing: {ranks}"

    def is_dismissed(self, worker: int) -> bool:
        """Whether a worker is of no use any more, so that its end says nothing."""
        return self._coordinator.is_dismissed(worker)

    def seconds_to_next(self) -> float | None:
        """Returns how long until `pass_time` wants to be called; None for never."""
        due = earliest(self._coordinator.deadline, self._tells_of_wait_at)
        due = None if due == math.inf else due  # it has been told
        return earliest(self.server.seconds_to_next(), seconds_until(due, self._clock))

    def pass_time(self) -> None:
        """Does what is due."""
        deadline = self._coordinator.deadline
        if deadline is not None and self._clock.now() >= deadline:
            self._handle(TimePassed())
        self.server.pass_time()
        self._tell_of_wait()

    def waits(self) -> list[OtherWait]:
        """Returns for whom a world waits that is to begin, for who looks on."""
        if not self._coordinator.is_waiting_for_some:
            return []
        return [OtherWait(self._coordinator.describe_wait(self._clock.now()))]

    def close(self) -> None:
        """Hangs up on all workers; harmless when repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        self.server.close()
        self._selector.unregister(self._wake_end)
        os.close(self._wake_end)
        os.close(self._waking_end)
        if self._owns_selector:
            self._selector.close()

    # ------------------------------------------------------------ inside

    def _take_posted(self) -> None:
        os.read(self._wake_end, 1 << 12)
        try:
            while True:
                self._handle(self._posted.get_nowait())
        except Empty:
            return

    def _hear(self, worker: int, message: Message) -> None:
        if isinstance(message, Ready):
            self._ports[worker] = message.port
            self._handle(CameReady(worker))
        elif isinstance(message, StoreRequest):
            self.server.tell(worker, self._values.answer(message))

    def _tell_of_wait(self) -> None:
        now = self._clock.now()
        if not self._coordinator.is_waiting_for_some:
            self._tells_of_wait_at = None
        elif self._tells_of_wait_at is None:
            self._tells_of_wait_at = now + _NOTICE_SECONDS
        elif now >= self._tells_of_wait_at:
            self._tells_of_wait_at = math.inf
            self._surroundings.tell_of_wait(self._coordinator.describe_wait(now))

    def _end_silent(self, worker: int, why: str) -> None:
        """A worker has stopped, or its host is cut off. Nobody waits until its end is confirmed,
        which may take as long as the cut."""
        self._surroundings.tell_of_silence(worker, why)
        self._starter.stop(worker, signal.SIGKILL)
        self._handle(Ended(worker, is_well=False))

    def _handle(self, event: Event) -> None:
        instructions = self._coordinator.handle(event, self._clock.now())
        placed = {
            each.message.rank: each.worker
            for each in instructions
            if isinstance(each, Tell) and isinstance(each.message, RankAssignment)
        }
        store = self._store(placed) if placed else ""
        for instruction in instructions:
            self._follow(instruction, store)

    def _store(self, placed: Mapping[int, int]) -> str:
        """Returns where the ranks of a new world meet. `placed`: the worker of each rank."""
        self.last_world = tuple(placed[rank] for rank in sorted(placed))
        hosts = tuple(map(self._coordinator.host_of, self.last_world))
        generation, port = self._coordinator.generation, self._ports[placed[0]]
        world = NewWorld(generation, hosts, port, self.last_world)
        self._surroundings.tell_of_world(world)
        return self._surroundings.meet_at(world)

    def _follow(self, instruction: Instruction, store: str) -> None:
        if isinstance(instruction, Start):
            self._start(instruction.worker, instruction.slot)
        elif isinstance(instruction, Tell):
            message = instruction.message
            if isinstance(message, RankAssignment):
                message = replace(message, store=store)
            self.server.tell(instruction.worker, message)
        elif isinstance(instruction, Stop):
            self._starter.stop(instruction.worker, signal.SIGKILL)
        elif isinstance(instruction, GiveUp):
            self.reason = instruction.reason
            if self._surroundings.give_up is not None:
                self._surroundings.give_up()
            else:
                for worker in self._coordinator.workers:
                    self._starter.stop(worker, signal.SIGTERM)

    def _start(self, worker: int, slot: Slot) -> None:
        environment = {
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_HOSTNAME": slot.host,
            "HOROVOD_LOCAL_RANK": str(slot.index),
            "LOCAL_RANK": str(slot.index),
            ADDRESS: self.server.address,
            WORKER: str(worker),
        }
        self._starter.start(worker, slot, environment)
