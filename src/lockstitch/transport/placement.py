"""Both ends of a connection wait on one processor: what is done about it.

Each end says in the memory of the rings where it waits (`memory.ring`). Where that is one and the
same processor several times in a row (an end that sleeps may wake up elsewhere), spinning would
only keep the other end from answering: so nobody spins there. Nor would the kernel part the two for
long times (`lockstitch.processors`). So the end that calls moves, as soon as another processor has
been idle of late, of those that share a cache with its own if there are any; it alone, or the two
might move together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.processors import HostProcessors, IdleWatch

if TYPE_CHECKING:
    from lockstitch.processors import Processors
    from lockstitch.transport.stream import StreamConnection

_TIMES_IN_A_ROW: Final = 3


class Placement:
    """One end's part in it; `moves`: this is the end that moves."""

    __slots__ = ("_idle", "_is_known", "_moves", "_processors", "_times")

    def __init__(self, *, moves: bool, processors: Processors | None = None) -> None:
        self._moves = moves
        self._processors: Processors = processors or HostProcessors()
        self._idle = IdleWatch(self._processors)
        self._times = 0
        """For so many waits in a row both have been on one processor."""
        self._is_known = True
        """Whether this host tells; else nothing is done."""

    def is_shared(self, connection: StreamConnection, now: float) -> bool:
        """This thread is about to wait for the other end. Whether that is on its processor; where
        it can, this thread has gone elsewhere."""
        if not self._is_known:
            return False
        try:
            here = self._processors.current()
            if not connection.waits_beside_peer(here):
                self._times = 0
                return False
            self._times += 1
            return self._times >= _TIMES_IN_A_ROW and not self._leaves(connection, here, now)
        except OSError:
            self._is_known = False
            return False

    def _leaves(self, connection: StreamConnection, here: int, now: float) -> bool:
        """Whether this thread has moved to where the other end is not."""
        if not self._moves or not self._idle.is_due(now):
            return False
        target = self._idle.find(self._candidates(here), now)
        if target is None:
            return False
        processors = self._processors
        processors.move_to(target)
        return not connection.waits_beside_peer(processors.current())

    def _candidates(self, here: int) -> list[int]:
        """Where this thread may go: not away from its cache, if there are others at that."""
        others = [each for each in self._processors.allowed() if each != here]
        near = self._processors.near(here)
        return [each for each in others if each in near] or others
