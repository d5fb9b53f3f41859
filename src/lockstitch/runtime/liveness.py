"""Which peers have fallen silent: heartbeats.

A process that dies is noticed by the end of its connections. One that is stopped, or cut off, just
says nothing more. So whoever waits for a peer, or has lent it something, asks it now and then
whether it lives (`Heartbeat`), and whoever reads at the other end answers (`Alive`). Workers that
have nothing to do with each other at the moment do not disturb each other.

Time is cut into five parts of the bound. At the end of each part a peer of concern has shown a sign
of life or has not: an answer, any other message or a piece of one, a piece of ours that it took in,
and on the same host that its process used the CPU (it may hold the GIL for long). After four parts
without any it is lost; hence within the bound.

A part that took much longer than it should was not the peer's silence but our own: this process was
stopped, or starved. Then all counting begins anew.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from lockstitch.errors import LockstitchError
from lockstitch.wire.messages import Alive, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockstitch.ids import WorkerId
    from lockstitch.runtime.agent import Agent
    from lockstitch.runtime.channel import Channel

_PARTS: Final = 5
_SILENT_PARTS: Final = 4


@dataclass(slots=True)
class _Watch:
    """What is known of one peer. `asking`: a heartbeat is being sent, which may take its time."""

    signs: object = None
    silent: int = 0
    asking: bool = False


class Liveness:
    """See the module. `bound_seconds` 0 watches nobody."""

    def __init__(self, agent: Agent, bound_seconds: float) -> None:
        self._agent = agent
        self.bound_seconds = bound_seconds
        self._part_seconds = bound_seconds / _PARTS
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._due: float | None = None
        self._answers: dict[WorkerId, int] = {}
        self._watches: dict[WorkerId, _Watch] = {}
        self._hopes: dict[WorkerId, tuple[int, Callable[[], None]]] = {}
        self._concerns: list[Callable[[], Iterable[WorkerId]]] = []
        agent.handlers[Heartbeat] = self._note_heartbeat
        agent.handlers[Alive] = self._note_alive
        agent.on_peer_lost(lambda peer, _error: self._forget(peer))

    def add_concern(self, workers: Callable[[], Iterable[WorkerId]]) -> None:
        """`workers()` tells, now and then, which peers somebody waits for, or has lent something.
        It is called on the timer's thread, and must be short."""
        self._concerns.append(workers)

    def start(self) -> None:
        """Begins to count; harmless when repeated. Called when the first connection is there."""
        with self._lock:
            if not self.bound_seconds or self._due is not None:
                return
            self._due = self._agent.clock.now() + self._part_seconds
        self._agent.timer.call_at(self._due, self._tick)

    def _tick(self) -> None:
        """The end of one part."""
        now, due = self._agent.clock.now(), self._due
        assert due is not None
        if now - due > self._part_seconds:
            self._watches.clear()
        watched = {worker for concern in self._concerns for worker in concern()}
        watched.discard(self._agent.id)
        for worker in self._watches.keys() - watched:
            del self._watches[worker]
        for worker in watched:
            if not self._agent.is_lost(worker):
                self._look_at(worker)
        self._due = now + self._part_seconds
        self._agent.timer.call_at(self._due, self._tick)

    def _look_at(self, worker: WorkerId) -> None:
        signs = (self._answers.get(worker, 0), *self._agent.peers.signs_of_life(worker))
        watch = self._watches.get(worker)
        if watch is None:
            watch = self._watches[worker] = _Watch(signs)
        elif watch.signs != signs:
            watch.signs, watch.silent = signs, 0
        else:
            watch.silent += 1
            if watch.silent >= _SILENT_PARTS:
                cause = f"it has been silent for {self.bound_seconds:g} s"
                peer = self._agent.info_of(worker)
                self._agent.spawn(partial(self._agent.peers.cut_off, peer, cause))
                return
        if not watch.asking:
            watch.asking = True
            self._agent.spawn(partial(self._ask, worker, watch))

    def _ask(self, worker: WorkerId, watch: _Watch) -> None:
        try:
            with contextlib.suppress(LockstitchError):  # then it is lost already
                self._agent.peers.channel(worker).ask(Heartbeat(next(self._numbers)))
        finally:
            watch.asking = False

    def when_heard(self, channel: Channel, callback: Callable[[], None]) -> None:
        """Asks a peer whether it lives, and runs `callback` on a thread of the crew when it has
        answered: never, where it is lost, the channel has broken, or this is called again."""
        number = next(self._numbers)
        self._hopes[channel.peer.worker] = number, callback
        try:
            channel.ask(Heartbeat(number))
        except LockstitchError:  # this connection, too; what that means is being found out
            self.stop_hoping(channel.peer.worker)

    def stop_hoping(self, worker: WorkerId) -> None:
        """What would be said once that peer is heard has been said."""
        self._hopes.pop(worker, None)

    def _note_heartbeat(self, sender: WorkerId, message: Heartbeat) -> None:
        caller = self._agent.peers.caller(sender)
        if caller is not None:
            with contextlib.suppress(ConnectionError):  # nobody waits for the answer any more
                caller.reply(Alive(message.number))

    def _note_alive(self, sender: WorkerId, message: Alive) -> None:
        self._answers[sender] = message.number
        hope = self._hopes.get(sender)
        if hope is not None and hope[0] <= message.number:
            self._hopes.pop(sender, None)
            self._agent.spawn(hope[1])

    def _forget(self, worker: WorkerId) -> None:
        self._answers.pop(worker, None)
        self._hopes.pop(worker, None)
