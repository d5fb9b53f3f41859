"""Quiescence: when may all workers go? When nobody has anything left to do, and will not get any.

A worker *rests* when none of its calls is unanswered, none of others' is being served, and none of
its threads is busy. That all rest, each at its own moment, is not enough: a call may have slipped
from one that had not yet been asked to one that had. So they meet at a barrier again and again.
Each time everybody first waits until it rests and then brings the number of requests that it has
sent and served so far. When two barriers in a row bring the same sum of numbers that only grow,
nothing has happened anywhere between the last moment of the first and the first moment of the
second, hence nothing was under way then, and nobody is left to begin anything.

They talk along a tree (`tree`), by three control messages, which do not disturb what they measure:

    Brought     child → parent    my whole subtree rests; its sum
    Announced   parent → child    all have come; the sum of all, in `activities`
                child → parent    I wait myself, for those in `names`
    CalledOff   to neighbours     the barrier fails; everybody passes that on

So nobody has more than five to talk to, however many there are.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from functools import partial
from typing import TYPE_CHECKING

from lockstitch.attach.values import OtherWait
from lockstitch.errors import (
    CalledOffError,
    ConnectionLostError,
    LockstitchError,
    PeerLeftError,
    RpcTimeoutError,
)
from lockstitch.rpc.barriers import Barrier, Barriers
from lockstitch.rpc.membership import Membership
from lockstitch.rpc.tree import Attendance
from lockstitch.wire.messages import Announced, Brought, CalledOff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.clock import Clock
    from lockstitch.errors import PeerDiedError
    from lockstitch.ids import WorkerId
    from lockstitch.runtime.worker import Worker
    from lockstitch.wire.messages import Message

_SHORTEST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.02
_FAREWELL_SECONDS = 5.0
_FIRST_QUESTION_SECONDS = 1.0
_LONGEST_QUESTION_SECONDS = 4.0
_LAST_WORDS_SECONDS = 0.5
_LAST_LOOKS = 10
_LEAST_SECONDS = 0.001
_MOMENT_SECONDS = 0.2


class TimeLimit:
    """A time limit for several steps together: `timeout_seconds` from now on, 0 for none."""

    def __init__(self, clock: Clock, timeout_seconds: float) -> None:
        self._clock = clock
        self._deadline = clock.now() + timeout_seconds if timeout_seconds else None

    @property
    def remaining(self) -> float:
        """How many seconds are left, never quite 0; 0 where there is no limit."""
        if self._deadline is None:
            return 0.0
        return max(_LEAST_SECONDS, self._deadline - self._clock.now())


class Quiescence:
    """Waits, with the others, until nothing is under way; a service of the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.barriers = Barriers(worker.name, "gathering")
        """The barriers of `_all_gather`, which go by calls."""
        self._rest_barriers = Barriers(worker.name, "rest")
        agent = worker.agent
        agent.handle(Brought, self._note_brought)
        agent.handle(Announced, self._note_announced)
        agent.handle(CalledOff, self._note_called_off)
        agent.on_peer_lost(self._note_lost)
        agent.add_concern(lambda: self._rest_barriers.awaited() | self.barriers.awaited())

    def members(self) -> dict[str, WorkerId]:
        """Returns all workers of the group, by name."""
        return {info.name: info.worker for info in self._worker.agent.members()}

    def attendance(self) -> Attendance:
        """Returns who meets where all do: of a fixed world without asking who they are, since in a
        large one that is the longest part."""
        me, agent = self._worker.info, self._worker.agent
        size = self._worker.service(Membership).fixed_size
        if size is None:
            return Attendance.of(self.members(), me.name)
        return Attendance.of_world(size, me.id, agent.resolve)

    # ------------------------------------------------------------ coming to rest

    def wait_until_all_rest(self, timeout_seconds: float | None) -> None:
        """Returns when all workers of the group have called this and nothing is under way.

        Raises `RpcTimeoutError` when that takes longer (None waits for ever), `PeerDiedError` when
        a neighbour is gone, and `RpcError` where somebody else has given up.
        """
        attendance = self.attendance()
        deadline = self._deadline(timeout_seconds)
        before: int | None = None
        while True:
            self.wait_until_rest(self._remaining(deadline))
            now = self._sum_of_activities(attendance, self._remaining(deadline))
            if now == before:
                return
            before = now

    def wait_until_rest(self, timeout_seconds: float | None) -> None:
        """Returns when this worker rests; raises `RpcTimeoutError` when that takes longer."""
        agent = self._worker.agent
        deadline = self._deadline(timeout_seconds)
        never, pause = threading.Event(), _SHORTEST_PAUSE_SECONDS
        while not agent.is_at_rest():
            remaining = self._remaining(deadline)
            if remaining is not None and remaining <= 0:
                owing = self.owing()
                whom = f": it waits for answers of {', '.join(owing)}" if owing else ""
                raise RpcTimeoutError(
                    f"worker {self._worker.name!r} had not come to rest in time{whom} ({agent!r}; "
                    "lockstitch.explain_waits() tells what each worker waits for)"
                )
            for channel in agent.peers.channels():
                channel.attend()  # an interrupt may have struck whoever was to read an answer
            # Nobody announces the last moment of the last call, and a shutdown may wait 20 ms.
            with agent.blocked():
                never.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def owing(self) -> list[str]:
        """Returns the names of those that owe answers, or that a barrier waits for."""
        channels = self._worker.agent.peers.channels()
        missing = [*self._rest_barriers.waiting(), *self.barriers.waiting()]
        return sorted({each.peer.name for each in channels if each.outstanding}.union(*missing))

    def let_others_go(self, timeout_seconds: float) -> None:
        """Waits until the workers have gone to which this one has announced the last barrier, so
        that the announcement reaches them before its connections end. Returns after that time, or
        five seconds, in any case."""
        children = self.attendance().node.children.values()
        gone = threading.Event()

        def note_gone(*_: object) -> None:
            if all(map(self._worker.agent.is_lost, children)):
                gone.set()

        self._worker.agent.on_peer_lost(note_gone)
        note_gone()
        gone.wait(min(timeout_seconds, _FAREWELL_SECONDS))

    def _sum_of_activities(self, attendance: Attendance, timeout_seconds: float | None) -> int:
        """Returns the sum of all workers' activities."""
        name, agent = self._worker.name, self._worker.agent
        deadline = self._deadline(timeout_seconds)
        barrier_id = self._rest_barriers.begin(attendance)
        try:
            barrier = self._rest_barriers.get(barrier_id)
            if deadline is not None and barrier.neighbours_above:
                deadline += _MOMENT_SECONDS  # the leader knows better who is missing, and says so
            with self.calling_off(barrier_id, barrier):
                self._rest_barriers.bring(barrier_id, name, agent.activity)
                self.wait_for(barrier_id, barrier, barrier.ready, self._remaining(deadline))
                total: int = sum(barrier.brought.values())
                for parent in barrier.neighbours_above:
                    brought = Brought(barrier_id, name, total)
                    with contextlib.suppress(ConnectionLostError):  # it is said again
                        agent.send(parent, brought)
                    remaining = self._remaining(deadline)
                    self.wait_for(barrier_id, barrier, barrier.settled, remaining, brought)
                    total = barrier.result
                self._rest_barriers.announce(barrier_id, total)
                for child in barrier.neighbours_below:
                    # Then the child asks again; or it has, was told meanwhile, and may have gone.
                    with contextlib.suppress(ConnectionLostError, PeerLeftError):
                        agent.send(child, Announced(barrier_id, (), (total,)))
            return total
        finally:
            self._rest_barriers.end(barrier_id)

    @contextlib.contextmanager
    def calling_off(
        self, barrier_id: str, barrier: Barrier, *, parent_may_be_late: bool = False
    ) -> Iterator[None]:
        """A context manager that tells the others if the wait within fails, so that they need not
        wait on. With `parent_may_be_late`, a parent that does not answer in time is left to find
        out by itself who is missing."""
        try:
            yield
        except LockstitchError as error:
            reason = error.reason if isinstance(error, CalledOffError) else str(error)
            told = [*barrier.neighbours_above, *barrier.neighbours_below]
            is_for_parent = barrier.ready.is_set() and isinstance(error, RpcTimeoutError)
            if parent_may_be_late and is_for_parent:
                told = barrier.neighbours_below
            for neighbour in told:
                with contextlib.suppress(LockstitchError):  # it may be the one that is gone
                    self._worker.agent.send(neighbour, CalledOff(barrier_id, reason))
            raise

    def _note_brought(self, sender: WorkerId, message: Brought) -> None:
        self._rest_barriers.bring(
            message.barrier_id, message.name, message.activity, may_repeat=True
        )
        for total in self._rest_barriers.result_of(message.barrier_id):
            # It brings this again, so it has not been told.
            answer = Announced(message.barrier_id, (), (total,))
            self._worker.agent.spawn(partial(self._tell, sender, answer))

    def _tell(self, neighbour: WorkerId, message: Message) -> None:
        with contextlib.suppress(LockstitchError):  # if it is gone, `lose` hears of it
            self._worker.agent.send(neighbour, message)

    def _note_announced(self, sender: WorkerId, message: Announced) -> None:
        for total in message.activities:
            self._rest_barriers.announce(message.barrier_id, total)
        if message.names:
            self._rest_barriers.note_missing(message.barrier_id, sender, message.names)
            self.barriers.note_missing(message.barrier_id, sender, message.names)

    def _note_called_off(self, _sender: WorkerId, message: CalledOff) -> None:
        error = CalledOffError(message.reason)
        self._rest_barriers.call_off(message.barrier_id, error)
        self.barriers.call_off(message.barrier_id, error)

    def _note_lost(self, worker: WorkerId, error: PeerDiedError) -> None:
        # Its last word may still be unread, on another connection than the one that ended first:
        # on that by which it called, which who has left has closed behind it.
        agent = self._worker.agent

        def lose(looks: int = _LAST_LOOKS) -> None:
            if looks and isinstance(error, PeerLeftError) and agent.peers.caller(worker):
                agent.call_later(_LAST_WORDS_SECONDS, partial(lose, looks - 1))
                return
            self.barriers.lose(worker, error)
            self._rest_barriers.lose(worker, error)

        agent.call_later(_LAST_WORDS_SECONDS, lose)

    # ------------------------------------------------------------ waiting

    def wait_for(
        self,
        barrier_id: str,
        barrier: Barrier,
        event: threading.Event,
        timeout_seconds: float | None,
        brought: Brought | None = None,
    ) -> None:
        """Blocks until `barrier` is ready, or settled, whichever `event` of it is given. Raises
        `RpcTimeoutError`, `PeerDiedError`, or `RpcError` where somebody has called it off.
        `brought` is sent to the parent again and again: it may be lost, or the answer."""
        worker = self._worker
        deadline = self._deadline(timeout_seconds)
        pause = _FIRST_QUESTION_SECONDS
        with worker.agent.blocked():
            while not worker.clock.wait(event, _first(pause, self._remaining(deadline))):
                remaining, missing = self._remaining(deadline), barrier.missing
                if event.is_set():
                    break
                if remaining is not None and remaining <= 0:
                    raise self._timeout_of(barrier_id, missing, timeout_seconds or 0.0)
                worker.agent.spawn(partial(self._ask_again, barrier_id, barrier, brought))
                pause = min(2 * pause, _LONGEST_QUESTION_SECONDS)
        if barrier.failure is not None:
            raise copy.copy(barrier.failure)

    def _timeout_of(self, barrier_id: str, missing: list[str], seconds: float) -> RpcTimeoutError:
        whom = ", ".join(map(repr, missing))
        has, is_ = ("has", "is") if len(missing) == 1 else ("have", "are")
        where, why = "_all_gather or _barrier", f"which {has} not called it for the same workers"
        if self._rest_barriers.holds(barrier_id):
            where, why = "shutdown", f"which {has} not called shutdown, or {is_} still at work"
        return RpcTimeoutError(
            f"Followers {missing} timed out in _all_gather after {seconds:.2f} seconds: worker "
            f"{self._worker.name!r} waits in {where} for {whom}, {why}"
        )

    def _ask_again(self, barrier_id: str, barrier: Barrier, brought: Brought | None) -> None:
        """Sends something to those that are awaited. Nobody reads a connection on which nothing is
        expected, so a death may go unnoticed there: sending finds it out. And the parent learns for
        whom this worker waits."""
        for parent in barrier.neighbours_above:
            if brought is not None:
                self._tell(parent, brought)
            elif not barrier.ready.is_set():
                self._tell(parent, Announced(barrier_id, tuple(barrier.missing), ()))
        for neighbour in list(barrier.awaited.values()):
            self._tell(neighbour, Announced("", (), ()))

    def waits(self) -> list[OtherWait]:
        """Returns the barriers that this worker waits at; see `runtime.reports`."""
        waiting = [*self._rest_barriers.waiting(), *self.barriers.waiting()]
        return [
            OtherWait(
                f"meets the others: waits for {', '.join(missing)}", tuple(missing), is_apart=True
            )
            for missing in waiting
        ]

    def _deadline(self, timeout_seconds: float | None) -> float | None:
        return None if timeout_seconds is None else self._worker.clock.now() + timeout_seconds

    def _remaining(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._worker.clock.now())


def _first(seconds: float, others: float | None) -> float:
    return seconds if others is None else min(seconds, others)
