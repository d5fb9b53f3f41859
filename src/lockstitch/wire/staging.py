"""Tensors of accelerators on the wire: their bytes are fetched where the frame wants them, and what
has arrived is moved on where it is opened.

    sender     describe ─► DeviceMemory … ─► begin to copy all of them ─► wait once
    receiver   decode ─► StagedPayload, in host memory ─► `settled`, by the thread that opens it

The decoder moves nothing: it runs on whichever thread reads, and another may be meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lockstitch.devices.kinds import HOST, count_like, is_gpu, is_here
from lockstitch.devices.moving import begin_move, move_all
from lockstitch.devices.pinned import staging_bytes
from lockstitch.devices.streams import wait_for_current
from lockstitch.errors import RpcError
from lockstitch.wire.messages import Payload
from lockstitch.wire.tensors import INLINE_BYTES, PARAMETER, REQUIRES_GRAD, DeviceMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstitch.devices.maps import DeviceMap
    from lockstitch.memory.leases import SegmentLease
    from lockstitch.wire.tensors import Header, Memory


# ---------------------------------------------------------------- sending


class Fetching:
    """The memories of one message that devices hold, on their way to the host."""

    def __init__(self, memories: Iterable[Memory]) -> None:
        self._memories = [each for each in memories if type(each) is DeviceMemory]

    def begin_small(self) -> None:
        """Begins to fetch the memories that travel inside the frame, into memory of their own."""
        small = [each for each in self._memories if 0 < each.nbytes <= INLINE_BYTES]
        if small:
            scratch = staging_bytes(sum([each.nbytes for each in small]))
            address = scratch.data_ptr()
            for each in small:
                each.copy_to(address)
                each.settle(address, scratch)
                address += each.nbytes

    def begin_large(self) -> None:
        """Begins to fetch the large memories, where nobody lends memory for them."""
        for each in self._memories:
            if each.nbytes > INLINE_BYTES:
                host = staging_bytes(each.nbytes)
                each.copy_to(host.data_ptr())
                each.settle(host.data_ptr(), host)

    def wait(self) -> None:
        """Returns when all that was begun is there."""
        wait_for_current({each.flat.device for each in self._memories})


# ---------------------------------------------------------------- receiving


class StagedPayload(Payload):
    """A payload some of whose items, still in host memory, belong to other devices; `staged` names
    them: item → header, and whether it may become a leaf."""

    staged: dict[int, tuple[Header, bool]]
    window: SegmentLease | None = None
    """The shared memory in which large items lie."""
    landed: Sequence[Any] = ()
    """The items once they were moved."""


def settled(
    payload: Payload, device_map: DeviceMap | None = None, *, is_used_here: bool = True
) -> Payload:
    """The payload with its items where they belong: by the device map, which is that of the asker
    where this is an answer, else as the sender says. They are ready for this thread's current
    streams, or, unless the payload `is_used_here`, for every stream.

    Raises `RuntimeError` for a device that the map does not name, and `RpcError` for one that
    a device map of the sender names and that is not here.
    """
    staged = payload.staged if isinstance(payload, StagedPayload) else {}
    items: list[Any] = list(payload.items)
    places: list[int] = []
    targets: list[torch.device] = []
    for index, item in enumerate(items):
        if isinstance(item, torch.Tensor):
            header = staged[index][0] if index in staged else None
            target = _target(header, device_map)
            if header is not None or target != item.device:
                places.append(index)
                targets.append(target)
    if isinstance(payload, StagedPayload):
        if payload.window is not None and any(map(is_gpu, targets)):
            payload.window.pin()
        payload.window = None  # nobody but the tensors shall keep it
    moved = move_all([items[index] for index in places], targets, is_used_here=is_used_here)
    for index, tensor in zip(places, moved, strict=True):
        code, as_leaf = _code(items[index]), True
        if index in staged:
            header, as_leaf = staged[index]
            code = header[0]
        items[index] = finished(code, tensor, as_leaf=as_leaf)
    if isinstance(payload, StagedPayload):
        payload.landed = [items[index] for index in places]
    return Payload(payload.encoding, payload.stream, items)


def _code(tensor: torch.Tensor) -> int:
    return (PARAMETER if type(tensor) is torch.nn.Parameter else 0) | (
        REQUIRES_GRAD if tensor.requires_grad else 0
    )


def _target(header: Header | None, device_map: DeviceMap | None) -> torch.device:
    if header is None:
        return HOST if device_map is None else device_map.source(HOST)
    _, _, name, is_mapped = header
    try:
        device = torch.device(name)
    except RuntimeError:  # a kind that this process does not know
        if is_mapped:
            raise
        device = HOST
    if device_map is not None:
        return device_map.source(device)
    if is_here(device):
        return device
    if is_mapped:
        raise RpcError(
            f"the caller's device map sends a tensor to {device}, but this worker has only "
            f"{count_like(device)} devices of that kind"
        )
    return HOST


def finished(code: int, tensor: torch.Tensor, *, as_leaf: bool) -> torch.Tensor:
    """Restores `requires_grad` and being a Parameter, unless the tensor is about to be stitched
    onto the graph."""
    if as_leaf and code & (PARAMETER | REQUIRES_GRAD):
        if code & PARAMETER:
            return torch.nn.Parameter(tensor, requires_grad=bool(code & REQUIRES_GRAD))
        tensor.requires_grad_(True)
    return tensor


def arrive(
    gradients: Iterable[torch.Tensor | None],
    on: Iterable[torch.device],
    *,
    keep_history: bool = False,
) -> list[torch.Tensor | None]:
    """Gradients on the devices of the tensors whose they are; with their history if that is to be
    kept."""
    pairs = list(zip(gradients, on, strict=True))
    if keep_history:
        with torch.enable_grad():
            return [None if each is None else begin_move(each, device) for each, device in pairs]
    there = [gradient for gradient, _ in pairs if gradient is not None]
    moved = iter(move_all(there, [on for gradient, on in pairs if gradient is not None]))
    return [None if gradient is None else next(moved) for gradient, _ in pairs]
