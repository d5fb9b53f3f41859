"""Blocks of host memory through which tensors of a device pass, kept between operations.

They are taken where the backend reduces from best. Those for a GPU are registered with CUDA once,
as a whole: from then on they are copied to and fro at the speed of the bus.
"""

from __future__ import annotations

import contextlib
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from lockstitch.collectives.shared_memory.arena import rounded_up
from lockstitch.collectives.streams import have_come, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# CUDA registers whole pages, none of them twice.
_PAGE: Final = 4096
# Blocks are kept by size: few sizes, so that most are found again.
_SMALLEST: Final = 1 << 16


class _Free(NamedTuple):
    block: torch.Tensor
    events: Sequence[torch.cuda.Event]
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
        rounded = (rounded_up(max(size, _SMALLEST)) + _PAGE - 1) // _PAGE * _PAGE
        with self._lock:
            self._collect()
            block = self._found(rounded)
        if block is None:
            memory = self._allocate(rounded + _PAGE)
            begin = -memory.data_ptr() % _PAGE
            block = memory[begin : begin + rounded]
        if device is not None and device.type == "cuda":
            self._register(block, device)
        return block

    def give_back(self, block: torch.Tensor, events: Sequence[torch.cuda.Event] = ()) -> None:
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
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]

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
            if have_come(kept[index].events):
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
        with torch.cuda.device(device):
            code = torch.cuda.cudart().cudaHostRegister(address, block.numel(), 0)  # type: ignore[no-untyped-call]
            if int(code) == 0:
                return
            # Slower, but as right. CUDA would report the refusal to whoever asks it next.
            self._may_register = False
            with self._lock:
                self._registered.pop(address, None)
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=device)
