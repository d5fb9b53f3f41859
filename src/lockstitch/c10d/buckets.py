"""Gradient buckets of DistributedDataParallel, reduced where they lie.

DistributedDataParallel allocates its buckets itself, and hands them over in every step. From the
second time on a bucket lives where the other ranks reach it (`Session.adopt`), so that nothing is
copied for its reduction. That changes the address of its memory, which arrays of numpy remember. So
nothing moves but what torch itself reduces in a backward pass, and of which Python has no other
tensor: nearly always, for the buckets are C++'s alone, unless gradients are views of them
(`gradient_as_bucket_view`).
"""

from __future__ import annotations

import gc
import inspect
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import Session

# What is smaller is copied as quickly.
_LEAST_BYTES: Final = 1 << 18
_SIGHTS: Final = "_lockstitch_sights"
_ENGINE: Final = "torch.autograd.graph"
"""The module from which every backward pass begins."""


class Buckets:
    """Those of one group."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def look_at(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Called by what torch calls, with the tensors of a reduction. Returns whether they are a
        bucket: no graph knows it, and no other tensor may be made in its memory."""
        if len(tensors) != 1 or tensors[0].nbytes < _LEAST_BYTES or not _is_called_by_engine():
            return False
        (bucket,) = tensors
        storage: Any = bucket.untyped_storage()
        sights = getattr(storage, _SIGHTS, 0)
        if sights > 1:
            return True
        setattr(storage, _SIGHTS, sights + 1)
        if sights == 1 and not _is_known_otherwise(bucket):
            self._session.adopt(bucket)
        return True


def _is_called_by_engine() -> bool:
    """Whether the caller of the caller is called by torch's C++ in a backward pass, with nothing of
    Python in between."""
    frame = inspect.currentframe()
    for _ in range(3):
        frame = frame and frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == _ENGINE


def _is_known_otherwise(bucket: torch.Tensor) -> bool:
    """Whether Python has another tensor in the same memory, of which there may be an array."""
    address = bucket.untyped_storage().data_ptr()
    return any(
        issubclass(type(each), torch.Tensor) and each is not bucket and _address_of(each) == address
        for each in gc.get_objects()
    )


def _address_of(tensor: torch.Tensor) -> int:
    """Returns where the storage of a tensor is; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
    except (RuntimeError, NotImplementedError):  # of those that stand for other tensors
        return 0
