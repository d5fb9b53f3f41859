"""Blocks of host memory through which tensors of a device pass, kept between operations.

They are taken where the backend reduces from best. What is special to them: a device may still read
a block that is given back, and those for a GPU are registered with CUDA once, as a whole: from then
on they are copied to and fro at the speed of the bus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.devices.kinds import is_gpu
from lockstitch.devices.pinned import register, unregister
from lockstitch.devices.streams import are_done, wait_for
from lockstitch.memory.blocks import Block, Ledger
from lockstitch.memory.pools import OURS, BufferPool
from lockstitch.memory.sizes import PAGE_BYTES, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from lockstitch.devices.streams import Event

_SMALLEST: Final = 1 << 16


class HostMemory(BufferPool):
    """`make` makes a tensor of so many bytes."""

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        super().__init__(Ledger.without_limits())
        self._make_bytes = make
        self._read: list[tuple[Block, Sequence[Event]]] = []
        """What was given back; until these events a device still reads it."""
        self._registered: dict[int, torch.Tensor] = {}
        """By address; kept until they are registered no more."""
        self._may_register = True
        self._is_closed = False

    def take(self, size: int, device: torch.device | None = None) -> Block:
        """A block of at least `size` bytes, for tensors of that device."""
        block = self.lend(max(size, _SMALLEST))
        assert block is not None
        if device is not None and is_gpu(device):
            self._register(block.memory, device)
        return block

    def give_back(self, block: Block, events: Sequence[Event] = ()) -> None:
        """Nobody reads or writes it any more, once these have come."""
        with self._lock:
            if not self._is_closed:
                self._read.append((block, events))

    def forget(self, block: Block) -> None:
        """Others may write into it at any time: it is not used again."""
        with self._lock:
            if not self._is_closed:
                self._ledger.drop(block)

    def close(self) -> None:
        """Keeps nothing any more. What is still in use stays good, as ordinary memory."""
        with self._lock:
            self._is_closed = True
            read, self._read = self._read, []
            self._ledger.drop_owner(OURS)
            registered, self._registered = self._registered, {}
        for _, events in read:
            wait_for(events)
        for address in registered:
            unregister(address)

    # ------------------------------------------------------------ inside

    def _allocate(self, size: int) -> torch.Tensor:
        memory = self._make_bytes(size + PAGE_BYTES)
        begin = -memory.data_ptr() % PAGE_BYTES
        return memory[begin : begin + size]

    def _collect(self, owner: Hashable, now: float) -> None:
        if self._is_closed:
            return
        super()._collect(owner, now)
        still_read = []
        for block, events in self._read:
            if are_done(events):
                self._ledger.give_back(block, now)
            else:
                still_read.append((block, events))
        self._read = still_read

    def _reuse(self, owner: Hashable, nbytes: int) -> Block | None:
        """The latest that is really free, for it is warm; or the one that will be first."""
        block = super()._reuse(owner, nbytes)
        if block is None:
            for index, (each, events) in enumerate(self._read):
                if fits(each.size, nbytes):
                    del self._read[index]
                    wait_for(events)
                    self._ledger.lend_again(each)
                    self._reused += 1
                    return each
        return block

    def _register(self, memory: torch.Tensor, device: torch.device) -> None:
        address = memory.data_ptr()
        with self._lock:
            if not self._may_register or self._is_closed or address in self._registered:
                return
            self._registered[address] = memory
        if not register(address, memory.numel(), device):
            self._may_register = False
            with self._lock:
                self._registered.pop(address, None)
