"""Tensors that are not in host memory, for backends that work there: the one place where they are
copied, once on the way in and once on the way out.

The copy out of the device is made where the operation is submitted, on the stream that is current
there; the copy back by whoever first asks for the result, on the stream that is current there. Both
are over when the call returns. So no other thread touches a device, and no stream has to wait for
another. A process that submits nothing from a device never touches one.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives.fusion import Layout
from lockstitch.collectives.host_memory import HostMemory
from lockstitch.collectives.requests import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.requests import Request

# Their results have the shapes of the tensors, so they may go where these have been.
_KEEP_SHAPES = (Kind.ALLREDUCE, Kind.BROADCAST)


def is_on_host(request: Request) -> bool:
    """Whether all its tensors are in host memory."""
    for tensor in request.tensors:  # no generators: this is asked about every operation
        if not tensor.is_cpu:
            return False
    if request.outputs is not None and request.outputs is not request.tensors:
        for tensor in request.outputs:
            if not tensor.is_cpu:
                return False
    return True


class Staging:
    """Of one rank. `allocate` makes a tensor of so many bytes in the backend's best memory."""

    def __init__(self, rank: int, allocate: Callable[[int], torch.Tensor]) -> None:
        self._rank = rank
        self._memory = HostMemory(allocate)

    def stage(self, handle: Handle[Any]) -> None:
        """Lets the handle's request be one of host memory, and its result come back from there."""
        request = handle.request
        layout = Layout.of(tensor.nbytes for tensor in request.tensors)
        device = _device_of(request.tensors)
        block = self._memory.take(layout.size, device)
        staged = _views(block, layout, request.tensors)
        if request.kind is not Kind.BROADCAST or request.root == self._rank:
            if device is not None and len(staged) > 1:
                packed = torch.empty(layout.size, dtype=torch.uint8, device=device)
                torch._foreach_copy_(_views(packed, layout, request.tensors), request.tensors)
                block[: layout.size].copy_(packed)
            else:
                for view, tensor in zip(staged, request.tensors, strict=True):
                    view.copy_(tensor)
        else:
            _finish_streams(request.outputs or request.tensors)
        handle.request = replace(
            request,
            tensors=staged,
            outputs=staged if request.kind in _KEEP_SHAPES else None,
        )
        handle.landing = Return(request, layout, block, self._memory)

    def close(self) -> None:
        """Gives the memory back."""
        self._memory.close()


class Return:
    """The way back to the devices, of one operation: once, however many ask for the result."""

    def __init__(
        self, request: Request, layout: Layout, block: torch.Tensor, memory: HostMemory
    ) -> None:
        self._request = request
        self._layout = layout
        self._block: torch.Tensor | None = block
        self._memory = memory
        self._lock = threading.Lock()
        self._value: object = None
        # Who never asks for the result gives the block back, too.
        self._finalizer = weakref.finalize(self, memory.drop, block)
        self._finalizer.atexit = False

    def __call__(self, value: Any) -> object:
        """The result where the tensors have been."""
        with self._lock:
            if self._block is not None:
                results = list(value) if self._request.is_group else [value]
                landed = self._land(results, self._block)
                self._value = landed if self._request.is_group else landed[0]
                self._finalizer.detach()
                self._memory.give_back(self._block)
                self._block = None
            return self._value

    def abandon(self) -> None:
        """The operation failed, and others may still write into the block: it is not used again."""
        self._finalizer.detach()

    def _land(self, results: list[torch.Tensor], block: torch.Tensor) -> list[torch.Tensor]:
        request = self._request
        device = _device_of(request.outputs or request.tensors)
        if request.kind in _KEEP_SHAPES and device is not None and len(results) > 1:
            packed = block[: self._layout.size].to(device, copy=True)
            results = list(_views(packed, self._layout, request.tensors))
            if request.outputs is None:
                return results
        if request.outputs is not None:
            torch._foreach_copy_(request.outputs, results)
            return list(request.outputs)
        # What comes besides them (how many rows an alltoall has received) stays where it is.
        landed = [
            result.to(tensor.device, copy=True)
            for tensor, result in zip(request.tensors, results, strict=False)
        ]
        return landed + results[len(landed) :]


def _views(
    memory: torch.Tensor, layout: Layout, like: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Tensors like these as they lie one behind the other in a vector of bytes."""
    return tuple(
        memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for offset, tensor in zip(layout.offsets, like, strict=True)
    )


def _device_of(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """The one device of all; None where they have several."""
    device = tensors[0].device
    return device if all(tensor.device == device for tensor in tensors) else None


def _finish_streams(tensors: Sequence[torch.Tensor]) -> None:
    """What was to be done with the tensors before is over."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
