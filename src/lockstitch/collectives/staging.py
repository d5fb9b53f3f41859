"""Tensors that are not in host memory, for backends that work there: the one place where they are
copied, once on the way in and once on the way out.

The copy out of the device is given to the stream that is current where the operation is submitted,
so a program goes on at once. The backend hears of it when the copy is over, which is seen by later
submissions, by whoever waits, or by a thread. The copy back is given to the stream that is current
where the result is asked for. A process that submits nothing from a device never touches one.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lockstitch.collectives.fusion import Layout
from lockstitch.collectives.host_memory import HostMemory
from lockstitch.collectives.requests import Kind
from lockstitch.collectives.shared_memory.background_driver import BackgroundDriver
from lockstitch.devices.streams import Streams, are_done, wait_for
from lockstitch.torch_internals.tensors import copy_many

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives.backend import Backend
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.requests import Request
    from lockstitch.devices.streams import Event
    from lockstitch.memory.blocks import Block

# Their results have the shapes of the tensors, so they may go where these have been.
_KEEP_SHAPES = (Kind.ALLREDUCE, Kind.BROADCAST)
_LOOK_SECONDS = 1.0


def is_on_host(request: Request) -> bool:
    """Returns whether all its tensors are in host memory."""
    for tensor in request.tensors:  # no generators: this is asked about every operation
        if not tensor.is_cpu:
            return False
    if request.outputs is not None and request.outputs is not request.tensors:
        for tensor in request.outputs:
            if not tensor.is_cpu:
                return False
    return True


class _Copied(NamedTuple):
    """An operation whose tensors are on their way into host memory."""

    handle: Handle[Any]
    events: list[Event]


class Staging:
    """The staging of one rank's tensors, in front of `backend`."""

    def __init__(self, backend: Backend, pending: PendingOperations) -> None:
        self._backend = backend
        self._pending = pending
        self._memory = HostMemory(lambda size: backend.resident((size,), torch.uint8))
        self._copied: deque[_Copied] = deque()
        self._lock = threading.Lock()
        self._background = BackgroundDriver(f"rank {pending.rank} copies", self)
        self.turns = 0
        """How often somebody has looked after the copies."""

    def __repr__(self) -> str:
        return f"<Staging · {len(self._copied)} on their way · {self._memory!r}>"

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._copied)

    def submit(self, handle: Handle[Any]) -> None:
        """Begins an operation, wherever its tensors are."""
        if self._copied:
            self.advance()
        events = self._stage(handle)
        if are_done(events):
            handle.route = None
            self._backend.submit(handle)
            return
        handle.route = self
        self._copied.append(_Copied(handle, events))
        if not handle.request.is_awaited:
            self._background.look_after()

    def advance(self) -> None:
        """Tells the backend of what has been copied meanwhile; never waits."""
        self.turns += 1
        while (copied := self._next(only_if_done=True)) is not None:
            self._hand_on(copied)

    def drive_unattended(self) -> None:
        """Waits for all copies, and tells the backend of them."""
        self.turns += 1
        while (copied := self._next()) is not None:
            self._hand_on(copied)

    def wait(self, handle: Handle[Any], gives_up: Callable[[], bool] | None = None) -> None:
        """Waits until the backend knows of the operation."""
        while handle.route is self and not handle.is_done:
            self.drive_unattended()
            if handle.route is self:  # another thread has just taken it
                handle.wait(_LOOK_SECONDS)
                handle.rearm()
                if gives_up is not None and gives_up():
                    return

    def close(self) -> None:
        """Gives the memory back; the session is over."""
        self._background.close()
        while (copied := self._next()) is not None:
            wait_for(copied.events)
        self._memory.close()

    # ------------------------------------------------------------ inside

    def _next(self, *, only_if_done: bool = False) -> _Copied | None:
        with self._lock:
            if not self._copied:
                return None
            first = self._copied[0]
            if only_if_done and not are_done(first.events):
                return None
            return self._copied.popleft()

    def _hand_on(self, copied: _Copied) -> None:
        handle = copied.handle
        try:
            wait_for(copied.events)
            handle.route = None
            if not handle.is_done:  # as when its process set is no more
                self._backend.submit(handle)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for it
            handle.route = None
            self._pending.fail(handle, error)
        handle.nudge()

    def _stage(self, handle: Handle[Any]) -> list[Event]:
        """Lets the handle's request be one of host memory, and its result come back from there.
        Returns when the tensors will be there."""
        request = handle.request
        layout = Layout.of(tensor.nbytes for tensor in request.tensors)
        device = _device_of(request.tensors)
        block = self._memory.take(layout.size, device)
        staged = _views(block.memory, layout, request.tensors)
        is_read = request.kind is not Kind.BROADCAST or request.root == self._pending.rank
        if is_read and device is not None and len(staged) > 1:
            packed = torch.empty(layout.size, dtype=torch.uint8, device=device)
            copy_many(_views(packed, layout, request.tensors), request.tensors)
            block.memory[: layout.size].copy_(packed, non_blocking=True)
        elif is_read:
            for view, tensor in zip(staged, request.tensors, strict=True):
                view.copy_(tensor, non_blocking=True)
        streams = Streams.of((*request.tensors, *(request.outputs or ())))
        handle.copy_back = StagedCopyBack(request, layout, block, self._memory, streams)
        handle.request = replace(
            request,
            tensors=staged,
            outputs=staged if request.kind in _KEEP_SHAPES else None,
            is_packed=True,
        )
        return streams.record()


class StagedCopyBack:
    """Copies the result of one operation back to the devices: once, however many ask for it."""

    def __init__(
        self,
        request: Request,
        layout: Layout,
        block: Block,
        memory: HostMemory,
        streams: Streams,
    ) -> None:
        self._request = request
        self._layout = layout
        self._block: Block | None = block
        self._memory = memory
        self._lock = threading.Lock()
        self._value: Any = None
        self._streams = streams
        """Those of who submitted it, then of who has copied the result back."""
        # Who never asks for the result gives the block back, too.
        self._lease = memory.lease(block)

    def __call__(self, value: Any) -> object:
        """The result where the tensors have been; what the current streams are given from now on
        comes after it."""
        with self._lock:
            if self._block is None:
                tensors = self._value if self._request.is_group else [self._value]
                self._streams.let_wait(tensors)
                return self._value
            results = list(value) if self._request.is_group else [value]
            self._streams.let_wait(self._request.outputs or ())
            copied_back = self._copy_back(results, self._block.memory)
            self._value = copied_back if self._request.is_group else copied_back[0]
            self._streams = Streams.of(copied_back)
            self._lease.cancel()
            # What is not in the block is kept by whoever has it; CUDA reads it before it returns.
            self._memory.give_back(self._block, self._streams.record())
            self._block = None
            return self._value

    def abandon(self) -> None:
        """The operation failed, and others may still write into the block: it is not used again."""
        self._lease.cancel()
        if self._block is not None:
            self._memory.forget(self._block)

    def _copy_back(self, results: list[torch.Tensor], block: torch.Tensor) -> list[torch.Tensor]:
        request = self._request
        device = _device_of(request.outputs or request.tensors)
        if request.kind in _KEEP_SHAPES and device is not None and len(results) > 1:
            packed = _moved(block[: self._layout.size], device)
            results = list(_views(packed, self._layout, request.tensors))
            if request.outputs is None:
                return results
            copy_many(request.outputs, results)
            return list(request.outputs)
        if request.outputs is not None:
            for output, result in zip(request.outputs, results, strict=True):
                output.copy_(result, non_blocking=True)
            return list(request.outputs)
        # What comes besides them (how many rows an alltoall has received) stays where it is.
        copied_back = [
            _moved(result, tensor.device)
            for tensor, result in zip(request.tensors, results, strict=False)
        ]
        return copied_back + results[len(copied_back) :]


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, non_blocking=True, copy=True)


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
