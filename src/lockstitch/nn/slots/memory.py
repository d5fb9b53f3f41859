"""Memory shared with a forked slot: blocks that one side fills and the other reads in place.

Each direction has a file without a name (memfd), which grows as blocks are needed. Its owner lends
blocks (`memory.blocks`) and names them in messages; the reader maps a block when it first hears of
it, and its tensors lie there. When the last of them is gone (`memory.leases`) the block is the
owner's again: the reader says so in its next message. So nothing is copied twice, and nothing that
somebody still holds is written over.

What is special to slots: the files are there before the fork, so that a block needs no descriptor
of its own, and what goes to and fro anyway says which blocks came back, so that no table is needed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from lockstitch.memory.blocks import Ledger
from lockstitch.memory.leases import Lease
from lockstitch.memory.mapping import punch
from lockstitch.memory.views import Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.memory.blocks import Block

NAME: Final = "lockstitch-slot"
"""The name of the file, as in `memory.mapping`."""
_OURS: Final = "ours"
_SLACK: Final = 4
# What has lain idle while so many others were asked for is given up, when all that lies idle is
# more than this and more than is in use. A step asks for two or three: these stay for the next one.
_IDLE_BYTES: Final = 1 << 20
_PATIENCE: Final = 64
_LOOK_ONE_IN: Final = 16
_KEPT_TENSORS: Final = 1000


class BlockName(NamedTuple):
    """How messages name a block."""

    number: int
    offset: int
    size: int


class MappedBlock(Views):
    """A block that this side has mapped; its owner fills the tensors that are kept."""

    def __init__(self, descriptor: int, name: BlockName) -> None:
        memory = mmap.mmap(descriptor, name.size, offset=name.offset)
        with torch.inference_mode(mode=False):
            super().__init__(torch.frombuffer(memory, dtype=torch.uint8), _KEPT_TENSORS)
        self.name = name
        # Made once: each type that ctypes makes is a cycle of references.
        self.kind = ctypes.c_char * name.size


class OwnedMemory:
    """The blocks that this side fills."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Its time is how many blocks were asked for.
        self._ledger = Ledger.without_limits()
        self._lent: dict[int, Block] = {}
        self._end = 0
        self._asked = self._next_look = 0

    def __repr__(self) -> str:
        free = len(self._ledger.blocks()) - len(self._lent)
        return f"<OwnedMemory · {len(self._lent)} blocks lent · {free} free>"

    @property
    def reserved_bytes(self) -> int:
        """How much memory the blocks take."""
        return self._ledger.bytes

    def allocate(self, size: int) -> MappedBlock:
        """A block of at least `size` bytes, to be filled and named in a message."""
        self._asked += 1
        block = self._ledger.reuse(_OURS, size, self._asked) or self._make(size)
        self._lent[block.number] = block
        return block.memory  # type: ignore[no-any-return]

    def _make(self, size: int) -> Block:
        block, _ = self._ledger.make(_OURS, size, self._asked)
        assert block is not None
        try:
            # Taken at once: whoever writes to it later must not find that there is no memory.
            os.posix_fallocate(self._descriptor, self._end, block.size)
            name = BlockName(block.number, self._end, block.size)
            block.memory = MappedBlock(self._descriptor, name)
        except BaseException:
            self._ledger.drop(block)
            raise
        self._end += block.size
        return block

    def take_back(self, numbers: Sequence[int]) -> None:
        """The reader has no use for these any more. When too many lie idle, those are given up that
        have for long."""
        ledger = self._ledger
        for number in numbers:
            ledger.give_back(self._lent.pop(number), self._asked)
        idle = ledger.spare_bytes
        kept = max(_IDLE_BYTES, ledger.bytes - idle) * _SLACK
        if idle > kept and self._asked >= self._next_look:
            self._next_look = self._asked + _LOOK_ONE_IN
            for block in ledger.drop_idle(self._asked - _PATIENCE, kept):
                name = block.memory.name
                punch(self._descriptor, name.offset, name.size)


class ReadMemory:
    """The blocks that the other side fills."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._blocks: dict[int, MappedBlock] = {}
        self._returned: deque[int] = deque()

    def open(self, name: BlockName) -> Any:
        """An object whose memory is that block, until nothing refers to it any more."""
        block = self._blocks.get(name.number)
        if block is None or block.name != name:
            block = self._blocks[name.number] = MappedBlock(self._descriptor, name)
        array = block.kind.from_address(block.address)
        array.lease = Lease(partial(self._returned.append, name.number), block)  # type: ignore[attr-defined]
        return array

    def returned(self) -> list[int]:
        """The blocks that nothing refers to any more, since this was last asked."""
        numbers = []
        while self._returned:
            numbers.append(self._returned.popleft())
        return numbers
