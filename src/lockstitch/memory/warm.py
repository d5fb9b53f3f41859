"""Warm buffers for what arrives in streams: memory that a received tensor lies in returns here when
the tensor is gone, and takes up the next one without any page having to be found first.

For small buffers the allocator does as much by itself; it gives large ones back to the system.
"""

from __future__ import annotations

import ctypes
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.memory.pools import Pool

if TYPE_CHECKING:
    from collections.abc import Hashable

    from lockstitch.memory.blocks import Block

LEAST_BYTES: Final = 1 << 20
_OURS: Final = "ours"


class _Loan:
    """Goes with a buffer; its end says that the buffer may be used again."""

    __slots__ = ("_block", "_returned")

    def __init__(self, block: Block, returned: SimpleQueue[Block]) -> None:
        self._block = block
        self._returned = returned

    def __del__(self) -> None:
        self._returned.put(self._block)


class WarmBuffers(Pool):
    """See the module."""

    def __init__(self, capacity_bytes: int, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(capacity_bytes, clock)
        # Finalizers run anywhere, under any lock: they only put something here.
        self._returned: SimpleQueue[Block] = SimpleQueue()

    def take(self, nbytes: int) -> ctypes.Array[Any] | None:
        """Memory for at least `nbytes`, lent until nothing refers to it; None where there is none
        or it would be no gain."""
        if nbytes < LEAST_BYTES:
            return None
        with self._lock:
            block = self._reuse(_OURS, nbytes)
            gone: list[Block] = []
            if block is None:
                block, gone = self._make(_OURS, nbytes)
        for each in gone:
            self._free(each)
        if block is None:
            return None
        if block.memory is None:
            try:
                block.memory = torch.empty(block.size, dtype=torch.uint8, device="cpu")
            except BaseException:
                self._unmake(block)
                raise
        array = (ctypes.c_char * block.size).from_address(block.memory.data_ptr())
        array.loan = _Loan(block, self._returned)  # type: ignore[attr-defined]
        return array

    def _collect(self, owner: Hashable, now: float) -> None:
        del owner
        while True:
            try:
                block = self._returned.get_nowait()
            except Empty:
                return
            self._ledger.give_back(block, now)

    def _free(self, block: Block) -> None:
        block.memory = None
