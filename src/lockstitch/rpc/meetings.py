"""When may all workers go? When nobody has anything left to do, and will not get any.

A worker *rests* when none of its calls is unanswered, none of others' is being served, and none of
its threads is busy. That all rest, each at its own moment, is not enough: a call may have slipped
from one that had not yet been asked to one that had. So they meet again. Each time everybody first
waits until it rests and then brings the number of requests that it has sent and served so far. When
two meetings in a row bring the same numbers, nothing has happened anywhere between the last moment
of the first and the first moment of the second, hence nothing was under way then, and nobody is
left to begin anything.

These messages are control messages, not calls: they do not disturb what they measure.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from functools import partial
from typing import TYPE_CHECKING

from lockstitch.errors import LockstitchError, RpcError, RpcTimeoutError
from lockstitch.rpc.gatherings import Gathering, Gatherings
from lockstitch.wire.messages import Announced, Brought, CalledOff

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lockstitch.errors import PeerDiedError
    from lockstitch.ids import WorkerId
    from lockstitch.runtime.worker import Worker

_SHORTEST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.02
_FAREWELL_SECONDS = 5.0
_NUDGE_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.5


class Meetings:
    """The meetings that `worker` takes part in; a service of the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.gatherings = Gatherings(worker.name, "gathering")
        """Those of `_all_gather`, which go by calls."""
        self._rests = Gatherings(worker.name, "rest")
        agent = worker.agent
        agent.handle(Brought, self._note_brought)
        agent.handle(Announced, self._note_announced)
        agent.handle(CalledOff, self._note_called_off)
        agent.on_peer_lost(self._note_lost)

    def members(self) -> dict[str, WorkerId]:
        """All workers of the group, by name."""
        return {info.name: info.worker for info in self._worker.agent.members()}

    # ------------------------------------------------------------ coming to rest

    def wait_until_all_rest(self, timeout_seconds: float | None) -> None:
        """Returns when all workers of the group have called this and nothing is under way.

        Raises `RpcTimeoutError` when that takes longer (None waits for ever), and `PeerDiedError`
        when a worker is gone.
        """
        members = self.members()
        deadline = self._deadline(timeout_seconds)
        before: Mapping[str, object] | None = None
        while True:
            self.wait_until_rest(self._remaining(deadline))
            now = self._meet(members, self._remaining(deadline))
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
                raise RpcTimeoutError(
                    f"worker {self._worker.name!r} had not come to rest in time: {agent!r}"
                )
            # Nobody announces the last moment of the last call, and a shutdown may wait 20 ms.
            with agent.blocked():
                never.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def let_others_go(self) -> None:
        """The one who led the last meeting goes last, so that its word reaches all before its
        connections end. Returns after a while in any case."""
        members = self.members()
        if self._worker.name != min(members):
            return
        others = [worker for worker in members.values() if worker != self._worker.id]
        gone = threading.Event()

        def note_gone(*_: object) -> None:
            if all(map(self._worker.agent.is_lost, others)):
                gone.set()

        self._worker.agent.on_peer_lost(note_gone)
        note_gone()
        gone.wait(_FAREWELL_SECONDS)

    def _meet(
        self, members: dict[str, WorkerId], timeout_seconds: float | None
    ) -> dict[str, object]:
        name, agent = self._worker.name, self._worker.agent
        leader, activity = min(members), agent.activity
        meeting = self._rests.begin(members)
        try:
            gathering = self._rests.get(meeting)
            if name == leader:
                self._rests.bring(meeting, name, activity)
            else:
                agent.send(members[leader], Brought(meeting, name, activity))
            with self.calling_off(meeting, members):
                self.wait_for(gathering, timeout_seconds)
            if name == leader:
                self._announce(meeting, gathering, members)
            return gathering.objects
        finally:
            self._rests.end(meeting)

    def _announce(self, meeting: str, gathering: Gathering, members: dict[str, WorkerId]) -> None:
        names, activities = zip(*sorted(gathering.objects.items()), strict=True)
        for name, worker in members.items():
            if name != self._worker.name:
                self._worker.agent.send(worker, Announced(meeting, names, activities))

    @contextlib.contextmanager
    def calling_off(self, meeting: str, members: Mapping[str, WorkerId]) -> Iterator[None]:
        """When the leader's wait within fails, the others need not wait on."""
        try:
            yield
        except LockstitchError as error:
            if self._worker.name == min(members):
                for worker in members.values():
                    with contextlib.suppress(LockstitchError):  # it may be the one that is gone
                        self._worker.agent.send(worker, CalledOff(meeting, str(error)))
            raise

    def _note_called_off(self, _sender: WorkerId, message: CalledOff) -> None:
        error = RpcError(f"the meeting of all was called off: {message.reason}")
        self._rests.call_off(message.meeting, error)
        self.gatherings.call_off(message.meeting, error)

    def _note_lost(self, worker: WorkerId, error: PeerDiedError) -> None:
        # Its last word may still be unread, on another connection than the one that ended first.
        def lose() -> None:
            self.gatherings.lose(worker, error)
            self._rests.lose(worker, error)

        self._worker.agent.call_later(_LAST_WORDS_SECONDS, lose)

    def _note_brought(self, _sender: WorkerId, message: Brought) -> None:
        self._rests.bring(message.meeting, message.name, message.activity)

    def _note_announced(self, _sender: WorkerId, message: Announced) -> None:
        objects = dict(zip(message.names, message.activities, strict=True))
        self._rests.announce(message.meeting, objects)

    # ------------------------------------------------------------ waiting

    def wait_for(self, gathering: Gathering, timeout_seconds: float | None) -> None:
        """Blocks until all have come. Raises `RpcTimeoutError`, `PeerDiedError`, or `RpcError`
        where the leader has called it off."""
        worker = self._worker
        deadline = self._deadline(timeout_seconds)
        pause = _first(_NUDGE_SECONDS, timeout_seconds)
        with worker.agent.blocked():
            while not worker.clock.wait(gathering.settled, pause):
                remaining = self._remaining(deadline)
                if remaining is not None and remaining <= 0:
                    raise RpcTimeoutError(
                        f"Followers {gathering.missing} timed out in _all_gather after "
                        f"{timeout_seconds:.2f} seconds: worker {worker.name!r} waits for them"
                    )
                worker.agent.spawn(partial(self._nudge, gathering))
                pause = _first(_NUDGE_SECONDS, remaining)
        if gathering.failure is not None:
            raise copy.copy(gathering.failure)

    def _nudge(self, gathering: Gathering) -> None:
        """Nobody reads a connection on which nothing is expected, so a death may go unnoticed
        there. Sending something finds out."""
        for name in gathering.missing:
            with contextlib.suppress(LockstitchError):  # then `lose` hears of it
                self._worker.agent.send(gathering.awaited[name], Announced("", (), ()))

    def describe_waits(self) -> list[str]:
        """A line for each meeting that this worker waits in; see `runtime.waits`."""
        waiting = [*self._rests.waiting(), *self.gatherings.waiting()]
        return [f"meets the others: waits for {', '.join(missing)}" for missing in waiting]

    def _deadline(self, timeout_seconds: float | None) -> float | None:
        return None if timeout_seconds is None else self._worker.clock.now() + timeout_seconds

    def _remaining(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._worker.clock.now())


def _first(seconds: float, others: float | None) -> float:
    return seconds if others is None else min(seconds, others)
