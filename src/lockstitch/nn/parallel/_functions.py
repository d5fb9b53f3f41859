"""The four steps of a parallel pass as autograd functions, in pairs: each is the other's backward.

    Broadcast  ↔  ReduceAddCoalesced      parameters to the slots, their gradients back
    Scatter    ↔  Gather                  the batch to the slots, the outputs back

Since each backward applies the partner and not a plain operation, gradients of gradients are right.
The module has the name that it has in torch, because programs import from it.

On one device nothing is copied: a slot's parameter is a view of the parameter, so that autograd
notices when an optimizer changes it between forward and backward.
"""

from __future__ import annotations

import warnings
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch.autograd import Function

from lockstitch.devices import accelerators
from lockstitch.devices.kinds import is_host
from lockstitch.nn.parallel import comm
from lockstitch.nn.parallel.places import Place, device_of, devices_of
from lockstitch.torch_internals.modules import get_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["Broadcast", "ReduceAddCoalesced", "Scatter", "Gather"]


class Broadcast(Function):
    """`Broadcast.apply(devices, *tensors)`: all tensors at the first place, then all at the second,
    …, as one flat tuple. Backward: the sums over places."""

    @staticmethod
    def forward(ctx: Any, devices: Sequence[Place], *tensors: torch.Tensor) -> Any:
        places = devices_of(devices)
        ctx.count = len(tensors)
        if not tensors:
            return ()
        ctx.origin = tensors[0].device
        if all(place == ctx.origin for place in places):
            copies = [[tensor.view_as(tensor) for tensor in tensors] for _ in places]
        else:
            copies = comm.broadcast_coalesced(tensors, places)
        ctx.mark_non_differentiable(
            *(
                copy
                for part in copies
                for copy, is_needed in zip(part, ctx.needs_input_grad[1:], strict=True)
                if not is_needed
            )
        )
        return tuple(chain.from_iterable(copies))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, *ReduceAddCoalesced.apply(ctx.origin, ctx.count, *gradients))


class ReduceAddCoalesced(Function):
    """`ReduceAddCoalesced.apply(destination, n, *tensors)`: `tensors` are n at the first place,
    then n at the second, …; n sums at `destination`. Backward: each sum's gradient at each place.
    """

    @staticmethod
    def forward(ctx: Any, destination: Place, count: int, *tensors: torch.Tensor) -> Any:
        parts = [tensors[i : i + count] for i in range(0, len(tensors), count)]
        ctx.places = [part[0].device for part in parts]
        return comm.reduce_add_coalesced(parts, destination)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, None, *Broadcast.apply(ctx.places, *gradients))


class Scatter(Function):
    """`Scatter.apply(devices, chunk_sizes, dim, tensor)`: the tensor's pieces, as `comm.scatter`
    cuts them. Backward: the gradients joined."""

    @staticmethod
    def forward(
        ctx: Any,
        devices: Sequence[Place],
        chunk_sizes: Sequence[int] | None,
        dim: int,
        tensor: torch.Tensor,
    ) -> Any:
        places = devices_of(devices)
        ctx.dim = dim
        ctx.origin = tensor.device
        streams = None
        if tensor.is_cpu and not any(map(is_host, places)):
            streams = [get_stream(place) for place in places]
        pieces = comm.scatter(tensor, places, chunk_sizes, dim, streams)
        if streams is not None:
            accelerators.wait_for_copies(pieces, places, streams)
        return pieces

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, None, Gather.apply(ctx.origin, ctx.dim, *gradients)


class Gather(Function):
    """`Gather.apply(destination, dim, *tensors)`: the tensors joined along `dim`; what has no
    dimensions becomes a vector, with a warning. Backward: the gradient cut as the inputs were."""

    @staticmethod
    def forward(ctx: Any, destination: Place, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.dim = dim
        ctx.places = [tensor.device for tensor in tensors]
        ctx.is_of_scalars = dim == 0 and all(tensor.dim() == 0 for tensor in tensors)
        if ctx.is_of_scalars:
            warnings.warn(
                "Was asked to gather along dimension 0, but all input tensors were scalars; "
                "will instead unsqueeze and return a vector.",
                stacklevel=2,
            )
            tensors = tuple(tensor.view(1) for tensor in tensors)
        ctx.sizes = [tensor.size(dim) for tensor in tensors]
        return comm.gather(tensors, dim, device_of(destination))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        pieces = Scatter.apply(ctx.places, ctx.sizes, ctx.dim, gradient)
        return (None, None, *(piece[0] if ctx.is_of_scalars else piece for piece in pieces))
