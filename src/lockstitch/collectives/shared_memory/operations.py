"""How one operation moves its tensors through the segment. The routes, chosen by all ranks alike
from what all of them have logged:

- *Whole* (`whole`): each rank has copied its tensors into its arena before it submitted. When all
  have, each computes its result from all copies. One phase, and no waiting beyond that. For all
  that is small, for groups of tensors that are not reduced, and for Adasum.
- *In place* (`in_place`): the tensors live in the arenas. Each rank reduces a slice of all of them
  and writes it into each. Two phases: every rank keeps a copy of its own, for it may change it
  afterwards.
- *In chunks* (`in_chunks`): large private tensors are reduced as they pass through rings of chunks.
- *Moving* (`moving`): large tensors pass through such rings to those who want them.

Where only some tensors live in the arenas, the others are copied there, and it goes on in place.
Where only some ranks' tensors are large, all move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from lockstitch.collectives.arithmetic import rows_gathered, scaled_copy
from lockstitch.collectives.copying import copy
from lockstitch.collectives.outcomes import value_of
from lockstitch.collectives.requests import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.requests import Description, Request
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.segment import Segment

NOWHERE: Final = 0


class OperationContext(Protocol):
    """What operations need of whoever performs them."""

    rank: int
    ranks: tuple[int, ...]
    """Those of the process set."""
    segment: Segment
    chunk_bytes: int

    def take(self, operation: Operation, size: int) -> int:
        """Takes room in this rank's arena until all are done with the operation (`Arena.take`)."""
        ...

    def give_back(self, operation: Operation) -> None:
        """Gives back what the operation has taken, which nobody needs any more."""
        ...

    def tell_progress(self, operation: Operation, count: int) -> None:
        """Tells the others that so many chunks, or the slice, are there."""
        ...

    def tell_reduced(self, operation: Operation, count: int) -> None:
        """Tells the others that the slice of so many chunks is reduced."""
        ...

    def tell_place(self, operation: Operation, place: int) -> None:
        """Tells the others that the whole tensor lies at `place`."""
        ...


class Part:
    """What one rank has logged of an operation."""

    is_done = False
    operation: Operation | None = None
    # How many chunks, or slices, there are.
    produced = 0
    reduced = 0

    def __init__(
        self,
        rank: int,
        definition: Definition,
        place: int,
        is_resident: bool,
        serial: int = -1,
    ) -> None:
        self.rank = rank
        self.definition = definition
        self.place = place
        """The place of the tensors, or of the ring of chunks, in bytes from the segment's
        beginning."""
        self.whole_place = NOWHERE if definition.is_large and not is_resident else place
        """The place where a tensor lies as a whole, once it does."""
        self.is_resident = is_resident
        self.serial = serial
        """Which of all that its rank has put into its lane it is; negative: it lies elsewhere."""


class Operation:
    """One operation as this rank performs it. `prepare` before it is submitted, `begin` when all
    parts are known, `step` until it says that it is done."""

    parts: Sequence[Part | None] = ()
    present: Sequence[Part] = ()
    position = 0
    """The position of this rank among the parts."""
    held: tuple[int, ...] = ()
    """The places in this rank's arena that are given back when all others are done."""
    is_short = False
    """Whether the tensors of all ranks lie in lanes."""
    unread = 0
    """How many other ranks may still read what lies there."""
    fails_alone = False
    """Whether an error that `step` raises is this rank's alone: it owes the others nothing."""

    def __init__(self, handle: Handle[Any], definition: Definition) -> None:
        self.handle = handle
        self.request: Request = handle.request
        self.definition = definition

    def begin(
        self,
        _context: OperationContext,
        parts: Sequence[Part | None],
        present: Sequence[Part],
        position: int,
    ) -> None:
        """Called when all ranks are ready. `parts` are by position, None for a rank that has
        joined."""
        self.parts = parts
        self.present = present
        self.position = position

    def owes(self, part: Part) -> bool:
        """Whether this rank still waits for something of that part."""
        raise NotImplementedError

    def end(self) -> None:
        """Called when nobody needs it any more. Operation and parts know each other, which would
        make work for the garbage collector with every operation."""
        for part in self.present:
            part.operation = None
        self.parts = self.present = self.held = ()

    def step(self, context: OperationContext) -> bool:
        """Goes on as far as it can without waiting; True when this rank's part is over. Where an
        interrupt ends it, at any call, it is called again: nothing may be lost or done twice."""
        raise NotImplementedError

    def result(self) -> object:
        """The value, when `step` is over."""
        raise NotImplementedError


def finished(
    handle: Handle[Any], described: Sequence[Description | None], results: list[torch.Tensor]
) -> object:
    """The value for whoever waits, of an operation that all ranks have described so."""
    if handle.request.kind is Kind.ALLGATHER:
        handle.rows = rows_gathered(described)
    return value_of(handle.request, results)


def stage(request: Request, views: Sequence[torch.Tensor]) -> None:
    """Copies a request's tensors, prescaled."""
    factor = request.reduction.prescale if request.reduction else 1.0
    for tensor, view in zip(request.tensors, views, strict=True):
        scaled_copy(tensor, factor, view)


def vectors_for(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns each output as a vector, or, where it does not lie in one piece, memory for one."""
    return [
        out.view(-1) if out.is_contiguous() else torch.empty(out.numel(), dtype=out.dtype)
        for out in outputs
    ]


def fill_from_vectors(outputs: Sequence[torch.Tensor], vectors: Sequence[torch.Tensor]) -> None:
    """Copies what was put together in such memory to where it belongs."""
    for out, vector in zip(outputs, vectors, strict=True):
        if vector.data_ptr() != out.data_ptr():
            copy(out, vector.view(out.shape))
