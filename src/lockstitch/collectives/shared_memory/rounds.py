"""Operations whose tensors pass through rings of chunks, in rounds: in round k every rank writes
its chunk k into its ring, and reads those of the others that concern it.

A rank may be `DEPTH` chunks ahead of its own reading; the ring has twice as many, so that a chunk
is overwritten only when all have read it: whoever has written chunk k has read all up to k - DEPTH.
A rank with nothing to write in a round says that it has come so far all the same.

An interrupt may end a step at any call. What was begun then is done again from what is still as it
was: the tensor until its chunk is consumed, the ring until the chunk is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockstitch.collectives.shared_memory.operations import NOWHERE, Operation

if TYPE_CHECKING:
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.operations import OperationContext, Part

DEPTH: Final = 2
SLOTS: Final = 2 * DEPTH
"""How many chunks a ring has."""


class InRounds(Operation):
    """What rounds have in common."""

    def __init__(self, handle: Handle[Any], definition: Definition) -> None:
        super().__init__(handle, definition)
        self.ring = NOWHERE
        self.rounds = 0
        """How many rounds there are; known when all parts are."""
        self._given = 0
        """How many chunks this rank has to write."""
        # How many chunks are in the ring, and read.
        self.produced = self.consumed = 0
        self._is_consuming = False
        """Whether reading the next chunk was begun: if so, an interrupt came in between."""

    @property
    def _own(self) -> Part:
        own = self.parts[self.position]
        assert own is not None
        return own

    def step(self, context: OperationContext) -> bool:
        while self.consumed < self.rounds:
            self._produce(context)
            if self._own.produced < self.produced:
                context.tell_progress(self, self.produced)
            if not self._is_readable(context):
                return False
            self._read(context, self.consumed)
            # Without a call in between, so that no interrupt can separate them.
            self._is_consuming = False
            self.consumed += 1
        return self._end()

    def _produce(self, context: OperationContext) -> None:
        """Writes as many chunks as it may; before all parts are known, its own first ones."""
        last = max(self.rounds, self._given)
        while self.produced < last and self.produced - self.consumed < DEPTH:
            if self.produced < self._given:
                self._write(context, self.produced)
            self.produced += 1

    def _is_readable(self, context: OperationContext) -> bool:  # noqa: ARG002 - others need it
        """Whether the next round can be read: all have written their chunks."""
        for part in self.present:  # noqa: SIM110 - this is called for every piece of news
            if part.produced <= self.consumed:
                return False
        return True

    def owes(self, part: Part) -> bool:
        return part.produced < self.rounds

    def _write(self, context: OperationContext, index: int) -> None:
        """Copies what chunk `index` has to hold into the ring."""
        raise NotImplementedError

    def _read(self, context: OperationContext, index: int) -> None:
        """Makes this rank's result of the chunks of round `index`."""
        raise NotImplementedError

    def _end(self) -> bool:
        """Does what is left when all is read; returns True."""
        return True
