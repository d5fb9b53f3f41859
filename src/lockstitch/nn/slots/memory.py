"""Memory shared with a forked slot: blocks that one side fills and the other reads in place.

Each direction has a file without a name (memfd), made before the fork, which grows as blocks are
needed. Its owner allocates blocks and names them in messages; the reader maps a block when it first
hears of it, and its tensors lie there. When the last of them is gone the block is the owner's
again: the reader says so in its next message. So nothing is copied twice, and nothing that somebody
still holds is written over.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAGE: Final = mmap.PAGESIZE
_NAME: Final = "lockstitch-slot"
_SLACK: Final = 4
# What has lain idle while so many others were asked for is given up, when all that lies idle is
# more than this and more than is in use. A step asks for two or three: these stay for the next one.
_IDLE_BYTES: Final = 1 << 20
_PATIENCE: Final = 64


class BlockName(NamedTuple):
    """How messages name a block."""

    number: int
    offset: int
    size: int


def create_file() -> int:
    """An empty file without a name."""
    return os.memfd_create(_NAME, os.MFD_CLOEXEC)


class MappedBlock:
    """A block that this side has mapped. Its tensors are kept and filled in whatever mode is on by
    then, so they are none of inference mode, which must not be written to in another one."""

    def __init__(self, descriptor: int, name: BlockName) -> None:
        self.name = name
        self._memory = mmap.mmap(descriptor, name.size, offset=name.offset)
        with torch.inference_mode(mode=False):
            self.bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()
        self.idle_since = 0
        # Made once: each type that ctypes makes is a cycle of references.
        self.kind = ctypes.c_char * name.size
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self._tensors: dict[Any, torch.Tensor] = {}

    def tensor(
        self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> torch.Tensor:
        """The tensor that lies there; for the owner's use, and kept: the same are filled again and
        again."""
        key = dtype, shape, strides, offset
        tensor = self._tensors.get(key)
        if tensor is None:
            with torch.inference_mode(mode=False):
                tensor = self._new_tensor(*key)
            if len(self._tensors) > 1000:
                self._tensors.clear()
            self._tensors[key] = tensor
        return tensor

    def _new_tensor(
        self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> torch.Tensor:
        typed = self._typed.get(dtype)
        if typed is None:
            size = self.name.size // dtype.itemsize * dtype.itemsize
            typed = self._typed[dtype] = self.bytes[:size].view(dtype)
        return typed.as_strided(shape, strides, offset // dtype.itemsize)


class OwnedMemory:
    """The blocks that this side fills."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._free: list[MappedBlock] = []
        self._lent: dict[int, MappedBlock] = {}
        self._end = 0
        self._count = 0
        self._asked = 0

    def __repr__(self) -> str:
        return f"<OwnedMemory · {len(self._lent)} blocks lent · {len(self._free)} free>"

    @property
    def reserved_bytes(self) -> int:
        """How much memory the blocks take."""
        return sum(block.name.size for block in [*self._free, *self._lent.values()])

    def allocate(self, size: int) -> MappedBlock:
        """A block of at least `size` bytes, to be filled and named in a message."""
        self._asked += 1
        fitting = [
            each for each in self._free if size <= each.name.size <= max(size, _PAGE) * _SLACK
        ]
        if fitting:
            block = min(fitting, key=lambda each: each.name.size)
            self._free.remove(block)
        else:
            block = self._make(size)
        self._lent[block.name.number] = block
        return block

    def _make(self, size: int) -> MappedBlock:
        size = (size + _PAGE - 1) // _PAGE * _PAGE
        # Taken at once: whoever writes to it later must not find that there is no memory.
        os.posix_fallocate(self._descriptor, self._end, size)
        block = MappedBlock(self._descriptor, BlockName(self._count, self._end, size))
        self._count += 1
        self._end += size
        return block

    def take_back(self, numbers: Sequence[int]) -> None:
        """The reader has no use for these any more. When too many lie idle, those are given up that
        have for long."""
        for number in numbers:
            block = self._lent.pop(number)
            block.idle_since = self._asked
            self._free.append(block)
        if not self._free or self._asked - self._free[0].idle_since < _PATIENCE:
            return
        idle = sum(block.name.size for block in self._free)
        in_use = sum(block.name.size for block in self._lent.values())
        while (
            len(self._free) > 1
            and idle > max(_IDLE_BYTES, in_use) * _SLACK
            and self._asked - self._free[0].idle_since >= _PATIENCE
        ):
            block = self._free.pop(0)
            idle -= block.name.size
            _punch(self._descriptor, block.name)


class _Lease:
    """Ends with the last tensor on a block."""

    __slots__ = ("_number", "_returned", "block")

    def __init__(self, block: MappedBlock, returned: deque[int]) -> None:
        self.block = block
        self._number = block.name.number
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append(self._number)


class ReadMemory:
    """The blocks that the other side fills."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._blocks: dict[int, MappedBlock] = {}
        self._returned: deque[int] = deque()

    def open(self, name: BlockName) -> Any:
        """An object whose memory is that block, until nothing refers to it any more."""
        block = self._blocks.get(name.number)
        if block is None:
            block = self._blocks[name.number] = MappedBlock(self._descriptor, name)
        array = block.kind.from_address(block.address)
        array.lease = _Lease(block, self._returned)  # type: ignore[attr-defined]
        return array

    def returned(self) -> list[int]:
        """The blocks that nothing refers to any more, since this was last asked."""
        numbers = []
        while self._returned:
            numbers.append(self._returned.popleft())
        return numbers


_libc = ctypes.CDLL(None, use_errno=True)
_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def _punch(descriptor: int, name: BlockName) -> None:
    """Frees the memory; the file keeps its size."""
    _libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(name.offset), ctypes.c_long(name.size))
