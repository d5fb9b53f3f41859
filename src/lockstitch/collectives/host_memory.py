"""Blocks of host memory through which tensors of a device pass, kept between operations.

They are taken where the backend reduces from best. Those for a GPU are registered with CUDA once,
as a whole: from then on they are copied to and fro at the speed of the bus.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from lockstitch.devices.kinds import is_gpu
from lockstitch.devices.pinned import register, unregister
from lockstitch.devices.streams import are_done, wait_for
from lockstitch.memory.arena import rounded_up
from lockstitch.memory.blocks import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from lockstitch.devices.streams import Event

# Blocks are kept by size: few sizes, so that most are found again.
_SMALLEST: Final = 1 << 16


class _Free(NamedTuple):
    block: torch.Tensor
    events: Sequence[Event]
    """Until then a device still reads it."""


class HostMemory:
    """`allocate` makes a tensor of so many bytes."""

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: dict[int, list[_Free]] = {}
        # Finalizers may run at any point, so they only leave a note.
        self._dropped: SimpleQueue[torch.Tensor] = SimpleQueue()
        self._registered: dict[int, torch.Tensor] = {}
        """By address; kept until they are registered no more."""
        self._may_register = True
        self._is_closed = False

    def __repr__(self) -> str:
        free = sum(map(len, self._free.values()))
        return f"<HostMemory · {free} blocks free · {len(self._registered)} registered>"

    def take(self, size: int, device: torch.device | None = None) -> torch.Tensor:
        """A block of at least `size` bytes, for tensors of that device."""
        rounded = (rounded_up(max(size, _SMALLEST)) + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        with self._lock:
            self._collect()
            block = self._found(rounded)
        if block is None:
            memory = self._allocate(rounded + PAGE_BYTES)
            begin = -memory.data_ptr() % PAGE_BYTES
            block = memory[begin : begin + rounded]
        if device is not None and is_gpu(device):
            self._register(block, device)
        return block

    def give_back(self, block: torch.Tensor, events: Sequence[Event] = ()) -> None:
        """Nobody reads or writes it any more, once these have come."""
        with self._lock:
            self._keep(_Free(block, events))

    def drop(self, block: torch.Tensor) -> None:
        """Gives back from a finalizer."""
        self._dropped.put(block)

    def close(self) -> None:
        """Keeps nothing any more. What is still in use stays good, as ordinary memory."""
        with self._lock:
            self._is_closed = True
            self._collect()
            free, self._free = [each for kept in self._free.values() for each in kept], {}
            registered, self._registered = self._registered, {}
        for each in free:
            wait_for(each.events)
        for address in registered:
            unregister(address)

    # ------------------------------------------------------------ inside

    def _collect(self) -> None:
        while not self._dropped.empty():
            self._keep(_Free(self._dropped.get(), ()))

    def _keep(self, free: _Free) -> None:
        if not self._is_closed:
            self._free.setdefault(free.block.numel(), []).append(free)

    def _found(self, size: int) -> torch.Tensor | None:
        """The latest that is really free, for it is warm; or the one that will be first."""
        kept = self._free.get(size)
        if not kept:
            return None
        for index in range(len(kept) - 1, -1, -1):
            if are_done(kept[index].events):
                return kept.pop(index).block
        first = kept.pop(0)
        wait_for(first.events)
        return first.block

    def _register(self, block: torch.Tensor, device: torch.device) -> None:
        address = block.data_ptr()
        with self._lock:
            if not self._may_register or self._is_closed or address in self._registered:
                return
            self._registered[address] = block
        if not register(address, block.numel(), device):
            self._may_register = False
            with self._lock:
                self._registered.pop(address, None)
