"""Memory that torch has allocated, moved to where the other ranks can reach it.

A tensor of a program that is reduced again and again, as the gradient buckets of
`DistributedDataParallel` are, may lie in the arena like those that `Session.resident` makes. All
tensors of its storage move along: the storage gets pages of its own (`Tensor.share_memory_`), and
the pages of the arena take their place. What the storage holds stays the same, its address does
not: so nobody may have noted that, as arrays of numpy do.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import multiprocessing

from lockstitch.collectives.mappings import declare_private, is_ours
from lockstitch.collectives.shared_memory.operations import NOWHERE
from lockstitch.memory.mapping import free_pages
from lockstitch.memory.sizes import PAGE_BYTES, aligned

if TYPE_CHECKING:
    from lockstitch.collectives.shared_memory.segment import Segment
    from lockstitch.memory.arena import Arena
    from lockstitch.memory.leases import Lease

_ATTRIBUTE: Final = "_lockstitch_residence"
_PAGES_COME_FROM: Final = "/dev/shm"
# Too little of it would end the process. Other ranks may move as much at the same time.
_SPARE: Final = 2


@dataclass(frozen=True, slots=True)
class Residence:
    """Where in a segment the memory of a storage is; kept with the storage."""

    segment: Segment
    place: int
    lease: Lease


def can_be_adopted(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is all of its storage, and torch has allocated that."""
    return (
        tensor.is_cpu
        and is_ours(tensor)
        and tensor.is_contiguous()
        and tensor.nbytes == tensor.untyped_storage().nbytes()
    )


def adopt(tensor: torch.Tensor, segment: Segment, rank: int, arena: Arena) -> bool:
    """Moves a tensor's storage into the arena of `rank`, whose lock the caller holds; returns
    False, having done nothing, where that is not possible. Raises `ArenaFullError`."""
    size = aligned(tensor.nbytes, PAGE_BYTES)
    if not can_be_adopted(tensor) or not _has_pages(size * segment.geometry.ranks):
        return False
    taken = arena.take(size + PAGE_BYTES)
    lease = arena.lease(taken, segment.mapping)
    place = aligned(segment.arena_begins[rank] + taken, PAGE_BYTES)
    content = segment.tensor(place, tensor.dtype, tensor.shape).copy_(tensor)
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    declare_private(tensor)
    free_pages(tensor.data_ptr(), size)
    try:
        segment.mapping.show_at(tensor.data_ptr(), place, size)
    except OSError:
        tensor.copy_(content)  # it stays in pages of its own
        return False
    setattr(tensor.untyped_storage(), _ATTRIBUTE, Residence(segment, place, lease))
    return True


def place_of(tensor: torch.Tensor, segment: Segment) -> int:
    """Returns where in the segment an adopted tensor begins, or `NOWHERE`."""
    storage: Any = tensor.untyped_storage()
    found: Residence | None = getattr(storage, _ATTRIBUTE, None)
    if found is None or found.segment is not segment:
        return NOWHERE
    begin: int = storage.data_ptr()
    return found.place + tensor.data_ptr() - begin


def _has_pages(size: int) -> bool:
    """Whether torch can give so much memory pages of their own, for the moment."""
    strategy = multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy != "file_descriptor":
        return False
    try:
        room = os.statvfs(_PAGES_COME_FROM)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize >= _SPARE * size
