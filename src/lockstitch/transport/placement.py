"""Both ends of a connection wait on one processor: what is done about it.

Each end says in the memory of the rings where it waits (`memory.ring`). Where that is one and the
same processor several times in a row (an end that sleeps may wake up elsewhere), the kernel may not
part the two for long times (`lockstitch.processors`). So the end that calls moves, as soon as
another processor has been idle of late, of those that share a cache with its own if there are any;
it alone, or the two might move together. An end that is bound to this processor does not spin
there: that would only keep the other one from answering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.processors import IdleWatch, Processors

if TYPE_CHECKING:
    from lockstitch.transport.stream import StreamConnection

_TIMES_IN_A_ROW: Final = 3


class Placement:
    """One end's part in it; `moves`: this is the end that moves."""

    __slots__ = ("_idle", "_is_known", "_moves", "_processors", "_times")

    def __init__(self, *, moves: bool, processors: Processors | None = None) -> None:
        self._moves = moves
        self._processors = processors or Processors()
        self._idle = IdleWatch(self._processors)
        self._times = 0
        """For so many waits in a row both have been on one processor."""
        self._is_known = True
        """Whether this host tells; else nothing is done."""

    def is_bound_beside(self, connection: StreamConnection, now: float) -> bool:
        """This thread is about to wait for the other end. Whether that is on the processor to which
        this one is bound; one that can has gone elsewhere where they met."""
        if not self._is_known:
            return False
        try:
            here = self._processors.current()
            if not connection.waits_beside_peer(here):
                self._times = 0
                return False
            self._times += 1
            if self._times < _TIMES_IN_A_ROW:
                return False
            allowed = self._processors.allowed()
            if len(allowed) > 1:
                self._leave([each for each in allowed if each != here], here, now)
            return len(allowed) == 1
        except OSError:
            self._is_known = False
            return False

    def _leave(self, others: list[int], here: int, now: float) -> None:
        """Moves to one of the others that is idle: of those at its cache, if there are any."""
        if not self._moves or not self._idle.is_due(now):
            return
        near = self._processors.near(here)
        target = self._idle.find([each for each in others if each in near] or others, now)
        if target is not None:
            self._processors.move_to(target)
