"""Parameters where forked slots see them: moved once into memory that is shared over a fork.

An optimizer's step is then seen by all slots, and no parameter is ever sent. Tensors of the module
that shared a storage share one afterwards. The memory belongs to an anonymous file and is gone with
the last process that maps it.

A child that the program itself forks (a DataLoader's worker) must not write to its parent's
parameters: in it the memory becomes its own, page by page, when it is written to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import torch

from lockstitch.forks import abandon_in_child
from lockstitch.memory.mapping import Mapping, create_file
from lockstitch.memory.sizes import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_NAME: Final = "lockstitch-parameters"
_SHARED: Final[WeakSet[SharedParameters]] = WeakSet()
_FORKING: Final = threading.local()


class SharedParameters:
    """The memory of some parameters; lives as long as one of them does."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._descriptor = create_file(_NAME)
        os.posix_fallocate(self._descriptor, 0, size)
        self._mapping = Mapping(self._descriptor, size)
        self.address = self._mapping.address
        self.is_shared = True
        _SHARED.add(self)
        abandon_in_child(self)

    def __repr__(self) -> str:
        return f"<SharedParameters of {self.size:,} bytes at {self.address:#x}>"

    def __del__(self) -> None:
        self._close()

    def memory(self, offset: int, size: int) -> Any:
        """An object whose memory is that part, and which keeps the whole."""
        array = (ctypes.c_char * size).from_address(self.address + offset)
        array.shared = self  # type: ignore[attr-defined]
        return array

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies here and a forked slot would see it."""
        return self.is_shared and 0 <= tensor.data_ptr() - self.address < self.size

    def abandon(self) -> None:
        """Called in a child of the program's own making; a slot goes on sharing."""
        if getattr(_FORKING, "a_slot", False) or self._descriptor < 0:
            return
        self.is_shared = False
        self._mapping.make_private(self._descriptor)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextlib.contextmanager
def forking_a_slot() -> Iterator[None]:
    """A fork within the block makes a slot, which shares its parent's parameters."""
    _FORKING.a_slot = True
    try:
        yield
    finally:
        _FORKING.a_slot = False


def is_with_slots(leaf: torch.Tensor) -> bool:
    """Whether it lies where forked slots see it, and will not be moved again."""
    return any(shared.holds(leaf) for shared in list(_SHARED))


def share(leaves: Sequence[torch.Tensor], others: Iterable[torch.Tensor] = ()) -> int:
    """Moves what is not shared yet, and those of `others` that lie in the same memory; returns how
    many bytes were moved.

    Raises `ValueError` for tensors that are not plain memory of the CPU.
    """
    storages: dict[int, list[torch.Tensor]] = {}
    for leaf in leaves:
        if leaf.layout is not torch.strided or not leaf.is_cpu:
            raise ValueError(
                f"a parameter on {leaf.device} with layout {leaf.layout} cannot be shared with a "
                "forked slot; use slots that are threads"
            )
        if leaf.numel() and not is_with_slots(leaf):
            storages.setdefault(leaf.untyped_storage().data_ptr(), []).append(leaf)
    size = sum(aligned(group[0].untyped_storage().nbytes()) for group in storages.values())
    if not size:
        return 0
    for other in others:
        if other.layout is torch.strided and other.is_cpu:
            group = storages.get(other.untyped_storage().data_ptr(), [])
            if group and all(other is not each for each in group):
                group.append(other)
    shared = SharedParameters(size)
    offset = 0
    for group in storages.values():
        _move(group, shared, offset)
        offset += aligned(group[0].untyped_storage().nbytes())
    return size


def _move(group: Sequence[torch.Tensor], shared: SharedParameters, offset: int) -> None:
    """All tensors of one storage."""
    size = group[0].untyped_storage().nbytes()
    memory = torch.frombuffer(shared.memory(offset, size), dtype=torch.uint8)
    old = torch.empty(0, dtype=torch.uint8, device="cpu").set_(group[0].untyped_storage())
    memory.copy_(old)
    for leaf in group:
        shape, strides, first = leaf.shape, leaf.stride(), leaf.storage_offset()
        data = torch.empty(0, dtype=leaf.dtype, device="cpu")
        leaf.data = data.set_(memory.untyped_storage(), first, shape, strides)
