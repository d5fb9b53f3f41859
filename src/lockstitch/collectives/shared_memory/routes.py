"""Which route an operation takes (see `operations`): all ranks choose alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.collectives.shared_memory import log
from lockstitch.collectives.shared_memory.adoption import place_of
from lockstitch.collectives.shared_memory.in_chunks import InChunks
from lockstitch.collectives.shared_memory.in_place import InPlace
from lockstitch.collectives.shared_memory.moving import Moving
from lockstitch.collectives.shared_memory.operations import NOWHERE, Operation
from lockstitch.collectives.shared_memory.whole import Whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.requests import Request
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.operations import OperationContext, Part
    from lockstitch.collectives.shared_memory.segment import Segment


def prepared(
    context: OperationContext, handle: Handle[Any], definition: Definition, in_place_bytes: int
) -> tuple[Operation, int, int]:
    """The operation, where this rank's tensors are, and flags for the log. A tensor that lives in
    the arena is reduced where it lies from `in_place_bytes` on."""
    request = handle.request
    is_one = definition.has_single or (request.is_packed and definition.is_uniform)
    if is_one and definition.layout.size >= in_place_bytes:
        place = _resident_place(context.segment, context.rank, request)
        if place != NOWHERE:
            return InPlace(handle, definition), place, log.RESIDENT
    operation: Whole | InChunks | Moving
    if not definition.is_large:
        operation = Whole(handle, definition)
    elif definition.can_be_sliced:
        operation = InChunks(handle, definition)
    else:
        operation = Moving(handle, definition)
    try:
        return operation, operation.prepare(context), 0
    except BaseException:  # a tensor that cannot be read, say: nobody knows of the operation yet
        context.give_back(operation)
        raise


def agreed(operation: Operation, present: Iterable[Part]) -> Operation:
    """What this rank has prepared, or what it becomes: if some tensor lives in an arena, all of
    them shall; if another rank's tensor is large, all move."""
    is_resident = is_large = False
    for part in present:
        is_resident |= part.is_resident
        is_large |= part.definition.is_large
    converted: InPlace | Moving
    if is_resident and not isinstance(operation, InPlace):
        converted = InPlace(operation.handle, operation.definition)
    elif is_large and isinstance(operation, Whole):
        converted = Moving(operation.handle, operation.definition)
    else:
        return operation
    converted.held = operation.held
    return converted


def _resident_place(segment: Segment, rank: int, request: Request) -> int:
    """The place of a tensor that can be reduced where it lies, or `NOWHERE`."""
    reduction = request.reduction
    if not request.outputs:
        return NOWHERE
    tensor = request.tensors[0]
    address = tensor.data_ptr()
    begin = address - segment.address - segment.arena_begins[rank]
    place = segment.arena_begins[rank] + begin
    if not 0 <= begin < segment.geometry.arena_bytes:
        place = place_of(tensor, segment)
    if (
        place == NOWHERE
        or request.outputs[0].data_ptr() != address
        or not tensor.is_contiguous()
        or not request.outputs[0].is_contiguous()
        or reduction is None
        or reduction.prescale != 1.0
    ):
        return NOWHERE
    return place
