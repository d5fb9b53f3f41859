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
from typing import TYPE_CHECKING, Final, Protocol

from lockstitch.errors import LockstitchError
from lockstitch.wire.messages import Alive, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.runtime.channel import Channel
    from lockstitch.runtime.core import Core
    from lockstitch.wire.messages import Message

_PARTS: Final = 5
_SILENT_PARTS: Final = 4


@dataclass(slots=True)
class _Watch:
    """What is known of one peer. `asking`: a heartbeat is being sent, which may take its time."""

    signs: object = None
    silent: int = 0
    asking: bool = False


class Caller(Protocol):
    """The connection on which a peer calls us, as far as it is needed here."""

    def reply(self, message: Message) -> None:
        """Sends it an answer. Raises `ConnectionError`."""
        ...


class Watched(Protocol):
    """The peers, as far as they are needed here."""

    def channel(self, to: WorkerId) -> Channel: ...
    def caller(self, worker: WorkerId) -> Caller | None: ...
    def info_of(self, worker: WorkerId) -> WorkerInfo: ...
    def is_lost(self, worker: WorkerId) -> bool: ...
    def signs_of_life(self, worker: WorkerId) -> tuple[object, ...]: ...
    def cut_off(self, peer: WorkerInfo, cause: str) -> None: ...


class Liveness:
    """See the module. `bound_seconds` 0 watches nobody."""

    def __init__(self, core: Core, peers: Watched) -> None:
        bound_seconds = core.options.heartbeat_timeout
        self._core = core
        self._peers = peers
        self.bound_seconds = bound_seconds
        self._part_seconds = bound_seconds / _PARTS
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._due: float | None = None
        self._answers: dict[WorkerId, int] = {}
        self._watches: dict[WorkerId, _Watch] = {}
        self._hopes: dict[WorkerId, tuple[int, Callable[[], None]]] = {}
        self._concerns: list[Callable[[], Iterable[WorkerId]]] = []

    def add_concern(self, workers: Callable[[], Iterable[WorkerId]]) -> None:
        """`workers()` tells, now and then, which peers somebody waits for, or has lent something.
        It is called on the timer's thread, and must be short."""
        self._concerns.append(workers)

    def start(self) -> None:
        """Begins to count; harmless when repeated. Called when the first connection is there."""
        with self._lock:
            if not self.bound_seconds or self._due is not None:
                return
            self._due = self._core.clock.now() + self._part_seconds
        self._core.timer.call_at(self._due, self._tick)

    def _tick(self) -> None:
        """Ends one part of the time that is granted to silent peers."""
        now, due = self._core.clock.now(), self._due
        assert due is not None
        if now - due > self._part_seconds:
            self._watches.clear()
        watched = {worker for concern in self._concerns for worker in concern()}
        watched.discard(self._core.id)
        for worker in self._watches.keys() - watched:
            del self._watches[worker]
        for worker in watched:
            if not self._peers.is_lost(worker):
                self._look_at(worker)
        self._due = now + self._part_seconds
        self._core.timer.call_at(self._due, self._tick)

    def _look_at(self, worker: WorkerId) -> None:
        signs = (self._answers.get(worker, 0), *self._peers.signs_of_life(worker))
        watch = self._watches.get(worker)
        if watch is None:
            watch = self._watches[worker] = _Watch(signs)
        elif watch.signs != signs:
            watch.signs, watch.silent = signs, 0
        else:
            watch.silent += 1
            if watch.silent >= _SILENT_PARTS:
                cause = f"it has been silent for {self.bound_seconds:g} s"
                peer = self._peers.info_of(worker)
                self._core.spawn(partial(self._peers.cut_off, peer, cause))
                return
        if not watch.asking:
            watch.asking = True
            self._core.spawn(partial(self._ask, worker, watch))

    def _ask(self, worker: WorkerId, watch: _Watch) -> None:
        try:
            with contextlib.suppress(LockstitchError):  # then it is lost already
                self._peers.channel(worker).ask(Heartbeat(next(self._numbers)))
        finally:
            watch.asking = False

    def when_heard(self, channel: Channel, callback: Callable[[], None]) -> None:
        """Asks a peer whether it lives, and runs `callback` on a thread of the pool when it has
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

    def note_heartbeat(self, sender: WorkerId, message: Heartbeat) -> None:
        """A peer asks whether this worker lives."""
        caller = self._peers.caller(sender)
        if caller is not None:
            with contextlib.suppress(ConnectionError):  # nobody waits for the answer any more
                caller.reply(Alive(message.number))

    def note_alive(self, sender: WorkerId, message: Alive) -> None:
        """A peer has answered that it lives."""
        self._answers[sender] = message.number
        hope = self._hopes.get(sender)
        if hope is not None and hope[0] <= message.number:
            self._hopes.pop(sender, None)
            self._core.spawn(hope[1])

    def forget(self, worker: WorkerId) -> None:
        """That worker is lost."""
        self._answers.pop(worker, None)
        self._hopes.pop(worker, None)
