"""The rank coordinator: who gets which rank, and when the ranks meet anew. Events in, instructions
out.

A *world* is a set of ranks that train together; its number is its generation. Where its workers
run, and which slots are left empty, is kept in `launcher_link.slots`. A worker is

    starting ──ready──▶ waiting ──rank──▶ in the world ──ready──▶ waiting …      (or it ends)

- The first world begins when `wanted` workers wait, or as many as can ever come, or, after
  `start_seconds`, at least `min_workers`.
- A later one begins when nobody is in the world any more and at least `min_workers` wait. Those
  that were in a world before keep their order, so rank 0 has the state whenever anybody has it.
- A worker that fails is replaced at once, while its slot is open. The ranks that are left need not
  wait for the new one: they go on if they are enough, and are told when it waits.
- Ranks that train are told of newcomers when no other worker of the same hosts is about to come,
  or after `settle_seconds`: a host with several slots comes in by one new world, not by several.
- When the first worker has finished, nobody is started any more. Ranks that are thrown back then
  may still meet and finish.
- All is over when nobody is left; or when a whole world has failed, for then the state is lost; or
  when too few workers have come for too long; or when the ranks have met anew too often.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

from lockstitch.launcher_link.messages import (
    Message,
    Over,
    RankAssignment,
    Update,
    UpdateKind,
    Void,
)
from lockstitch.launcher_link.slots import Slot, SlotBook
from lockstitch.launcher_link.worker_book import KnownWorker, WorkerBook

_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """What a job may choose of this; times are in seconds."""

    wanted: int
    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    start_seconds: float = 600.0
    elastic_seconds: float = 600.0
    slot_failures: int = 3
    cooldown_seconds: tuple[float, float] = (0.0, 0.0)
    """How long a slot stays empty after its first failure, and at most; it doubles each time."""
    settle_seconds: float = 1.0
    """How long a newcomer waits for those that are being started on its host."""
    is_fixed: bool = True
    """Whether there will never be other hosts than those named at the beginning."""


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class HostsFound:
    """These hosts have so many slots, now; the first is filled first."""

    slots: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CameReady:
    """A worker is in no world (any more) and wants a rank."""

    worker: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker's process has ended."""

    worker: int
    is_well: bool


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`RankCoordinator.deadline` has come."""


Event = HostsFound | CameReady | Ended | TimePassed

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker with this number."""

    worker: int
    slot: Slot


@dataclass(frozen=True, slots=True)
class Tell:
    """Send that message to a worker."""

    worker: int
    message: Message


@dataclass(frozen=True, slots=True)
class Stop:
    """End a worker that is of no use any more."""

    worker: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the job: it has failed."""

    reason: str


Instruction = Start | Tell | Stop | GiveUp


@dataclass
class RankCoordinator:
    """The table of workers; `handle` takes an event in and returns what follows from it."""

    options: CoordinatorOptions
    began_at: float
    generation: int = 0
    is_finishing: bool = False
    """Whether a worker has finished."""
    is_given_up: bool = False
    is_well: bool = False
    """Whether a worker has finished since the last failure."""
    resets: int = 0
    _slots: SlotBook = field(init=False)
    _workers: WorkerBook = field(default_factory=WorkerBook)
    _numbers: int = 0
    _updates: int = 0
    _pending_update: UpdateKind = UpdateKind.NOTHING
    _sent_update: UpdateKind = UpdateKind.NOTHING
    _failures: int = 0
    _waits_since: float | None = None
    _voided: int = 0
    """The last generation of which its world has been told that it is over."""
    _out: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._slots = SlotBook(self.options.slot_failures, self.options.cooldown_seconds)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Takes an event in; returns the instructions that follow. Times are of any clock that only
        goes forward."""
        if not self.is_given_up:
            if isinstance(event, HostsFound):
                self._note_hosts(event)
            elif isinstance(event, CameReady):
                self._note_ready(event.worker, now)
            elif isinstance(event, Ended):
                self._note_end(event, now)
            self._fill_slots(now)
            self._begin_world_if_due(now)
            self._give_up_if_too_late(now)
        elif isinstance(event, Ended):
            self._workers.remove(event.worker)
        out, self._out = self._out, []
        return out

    @property
    def is_over(self) -> bool:
        """Whether nobody is left and nobody will come."""
        return not self._workers.all and (self.is_given_up or self.is_finishing)

    @property
    def deadline(self) -> float | None:
        """When to tell of `TimePassed`, if nothing happens before; None for never."""
        if self.is_given_up or self.is_finishing:
            return None
        times = self._slots.reopenings
        settles_at = self._settles_at()
        if settles_at is not None and not self._pending_update & UpdateKind.ADDED:
            times.append(settles_at)
        if self.generation == 0:
            times.append(self.began_at + self.options.start_seconds)
        if self._waits_since is not None:
            times.append(self._waits_since + self.options.elastic_seconds)
        return min(times, default=None)

    @property
    def is_waiting_for_some(self) -> bool:
        """Whether there is no world, some workers have come, and others are being started."""
        workers = self._workers
        has_begun = not workers.in_world and 0 < len(workers.waiting) < workers.in_use
        return has_begun and not self.is_given_up and not self.is_finishing

    def describe_wait(self, now: float) -> str:
        """Returns in words who has not come, and how long the others wait for them at most."""
        until = self.began_at + self.options.start_seconds
        if self.generation:
            until = (self._waits_since or now) + self.options.elastic_seconds
        came = len(self._workers.waiting)
        others = f"{came} other{'s have' if came > 1 else ' has'}"
        return f"{self._who_has_not_come()}; {others}, and will wait {until - now:.0f} s at most"

    @property
    def workers(self) -> list[int]:
        """The numbers of all workers that have been started and have not ended."""
        return list(self._workers.all)

    def host_of(self, worker: int) -> str:
        """Returns the host of a worker that runs."""
        return self._workers.all[worker].slot.host

    def is_dismissed(self, worker: int) -> bool:
        """Whether a worker is of no use any more, so that its end says nothing."""
        known = self._workers.all.get(worker)
        return known is None or known.is_dismissed

    # ------------------------------------------------------------ events

    def _note_hosts(self, event: HostsFound) -> None:
        self._slots.note_hosts(event.slots)
        for worker in self._living():
            if worker.slot not in self._slots:
                self._workers.change(worker, is_dismissed=True)
                if worker.is_in_world:
                    self._pending_update |= UpdateKind.REMOVED
                elif worker.is_ready:
                    self._tell(worker, Over("its host is to be used no longer"))
                else:
                    self._out.append(Stop(worker.number))
        self._send_updates()

    def _note_ready(self, number: int, now: float) -> None:
        worker = self._workers.all.get(number)
        if worker is None:
            return
        self._workers.change(worker, is_ready=True, is_in_world=False, ready_at=now)
        if worker.is_dismissed:
            self._tell(worker, Over("its host is to be used no longer"))

    def _note_end(self, event: Ended, now: float) -> None:
        worker = self._workers.remove(event.worker)
        if worker is None:
            return
        if worker.is_in_world and (worker.is_dismissed or not event.is_well):
            self._void_world()
        if worker.is_dismissed:
            return
        if event.is_well:
            self._note_success()
            return
        self.is_well = False
        self._failures += 1
        self._slots.note_failure(worker.slot, worker.started_at, now)
        self._give_up_if_all_have_failed()

    def _void_world(self) -> None:
        """Tells the others of the world that it is over, once."""
        if self._voided < self.generation:
            self._voided = self.generation
            for other in self._workers.in_world.values():
                self._tell(other, Void(self.generation))

    def _note_success(self) -> None:
        was_finishing, self.is_finishing, self.is_well = self.is_finishing, True, True
        if was_finishing:  # nobody has been started since
            return
        for worker in self._living():
            if worker.rank is None and not worker.is_ready:
                self._workers.change(worker, is_dismissed=True)
                self._out.append(Stop(worker.number))

    # ------------------------------------------------------------ what follows

    def _give_up_if_all_have_failed(self) -> None:
        if self.is_finishing:
            return
        if self.generation == 0:
            if self._failures >= self.options.wanted:
                self._give_up(f"{self._failures} workers failed before the ranks had met")
        elif not self._workers.with_state:
            self._give_up("all ranks have failed, so nobody has the state to go on with")

    def _fill_slots(self, now: float) -> None:
        """Starts workers in slots that are free."""
        if self.is_finishing or self.is_given_up:
            return
        room = min(self._target(), self._slots.usable) - self._workers.in_use
        if room <= 0:
            return
        taken = self._workers.slots
        free = (slot for slot in self._slots if slot not in taken)
        for slot in itertools.islice((s for s in free if self._slots.is_open(s, now)), room):
            worker = KnownWorker(self._numbers, slot, now)
            self._numbers += 1
            self._workers.add(worker)
            self._out.append(Start(worker.number, slot))

    def _begin_world_if_due(self, now: float) -> None:
        """Begins a world, if it is time."""
        if self.is_given_up:
            return
        newcomers = self._workers.ready_newcomers
        if self.is_finishing:
            for worker in list(newcomers.values()):
                self._workers.change(worker, is_dismissed=True)
                self._tell(worker, Over("the training has finished"))
        if self._workers.in_world:
            self._waits_since = None
            if newcomers:
                settles_at = self._settles_at()
                if settles_at is None or now >= settles_at:
                    self._pending_update |= UpdateKind.ADDED
            self._send_updates()
            return
        waiting = self._workers.waiting
        if waiting and len(waiting) >= self._needed(now):
            self._begin_world(list(waiting.values()))
        elif not self.is_finishing and self.generation and self._waits_since is None:
            self._waits_since = now

    def _needed(self, now: float) -> int:
        options = self.options
        if self.generation == 0 and now < self.began_at + options.start_seconds:
            if not options.is_fixed:
                return options.wanted
            to_come = min(options.wanted, self._target(), self._slots.usable)
            return max(options.min_workers, to_come)
        return 1 if self.is_finishing else options.min_workers

    def _begin_world(self, waiting: list[KnownWorker]) -> None:
        if self.generation:
            self.resets += 1
            limit = self.options.reset_limit
            if limit is not None and self.resets > limit:
                self._give_up(f"the ranks would meet anew for time {self.resets}; limit: {limit}")
                return
        self.generation += 1
        self._waits_since = None
        self._pending_update = self._sent_update = UpdateKind.NOTHING
        order = {slot: index for index, slot in enumerate(self._slots)}
        last = len(order)
        waiting.sort(key=lambda w: (w.rank is None, w.rank or 0, order.get(w.slot, last), w.number))
        chosen = waiting[: self.options.max_workers]
        for rank, worker in enumerate(chosen):
            self._workers.change(worker, rank=rank, is_in_world=True, is_ready=False)
            self._tell(worker, RankAssignment(self.generation, rank, len(chosen), ""))

    def _send_updates(self) -> None:
        """Tells the world that workers wait to come in or are to go, once for each kind."""
        if self._pending_update & ~self._sent_update:
            self._sent_update |= self._pending_update
            self._updates += 1
            for worker in self._workers.in_world.values():
                self._tell(worker, Update(self._updates, int(self._pending_update)))

    def _give_up_if_too_late(self, now: float) -> None:
        if self.is_given_up or self.is_finishing:
            return
        options = self.options
        too_few = f"fewer than {options.min_workers} workers"
        if self._workers.in_world:
            return
        if self._is_hopeless():
            self._give_up(f"{too_few} are left, and there is no slot for another")
        elif self.generation == 0 and now >= self.began_at + options.start_seconds:
            self._give_up_on_late(f"{too_few} have come within {options.start_seconds:g} s")
        elif self._waits_since is not None and now >= self._waits_since + options.elastic_seconds:
            self._give_up_on_late(f"{too_few} for {options.elastic_seconds:g} s")

    def _give_up_on_late(self, reason: str) -> None:
        late = self._who_has_not_come()
        self._give_up(f"{reason}: {late}" if late else reason)

    def _who_has_not_come(self) -> str:
        """Returns in words which workers have been started and are not ready; empty words where
        there are none."""
        late = [
            worker
            for worker in self._living()
            if not (worker.is_ready or worker.is_in_world or worker.is_dismissed)
        ]
        if not late:
            return ""
        named = ", ".join(f"worker {w.number} on host {w.slot.host}" for w in late[:_MOST_NAMED])
        more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
        have = "has" if len(late) == 1 else "have"
        return f"{named}{more} {have} been started and {have} not come"

    def _is_hopeless(self) -> bool:
        """Whether there will never be enough workers."""
        if not self.options.is_fixed:
            return False
        return min(self._slots.usable, self._target()) < self.options.min_workers

    def _give_up(self, reason: str) -> None:
        self.is_given_up = True
        self._out.append(GiveUp(reason))

    def _tell(self, worker: KnownWorker, message: Message) -> None:
        self._out.append(Tell(worker.number, message))

    # ------------------------------------------------------------ figures

    def _settles_at(self) -> float | None:
        """When the ranks that train are to be told of newcomers at the latest; None where there are
        none, where nobody trains, or nobody else is about to come on the newcomers' hosts."""
        if not (self._workers.in_world and self._workers.is_settling):
            return None
        first = next(iter(self._workers.ready_newcomers.values()))
        return first.ready_at + self.options.settle_seconds

    def _living(self) -> list[KnownWorker]:
        return list(self._workers.all.values())

    def _target(self) -> int:
        """How many workers there should be."""
        slots, most = len(self._slots), self.options.max_workers
        return slots if most is None else min(slots, most)
