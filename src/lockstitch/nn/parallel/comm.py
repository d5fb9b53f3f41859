"""Copying, adding, cutting and joining tensors over the places of a parallel step, without autograd
(`_functions` has that).

A tensor that is at a place already is not copied there, as in the original; where several places
are one device, the first keeps the tensor and the others get copies. Between several GPUs the work
is torch's own.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import comm as gpus

from lockstitch.devices import accelerators
from lockstitch.devices.moving import begin_copy, begin_move
from lockstitch.nn.parallel.places import Place, are_different_gpus, device_of, devices_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
    "gather",
]

BUFFER_BYTES = 10 * 1024 * 1024


def broadcast(
    tensor: torch.Tensor,
    devices: Iterable[Place] | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """`tensor` at each place of `devices`, or copied into the tensors `out`: one of the two is to
    be given, else `RuntimeError`."""
    if (devices is None) == (out is None):
        raise RuntimeError(
            "Exactly one of 'devices' and 'out' must be specified, "
            f"but got devices={devices} and out={out}"
        )
    if devices is None:
        assert out is not None
        for i, target in enumerate(out):
            if target.shape != tensor.shape:
                raise RuntimeError(
                    "Expected all output tensors to have same shape as the source tensor "
                    f"{tuple(tensor.shape)}, but output tensor at index {i} has "
                    f"{tuple(target.shape)}"
                )
        for target in out:
            begin_copy(target, tensor)
        return tuple(out)
    return tuple(copies[0] for copies in broadcast_coalesced([tensor], devices))


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor],
    devices: Iterable[Place],
    buffer_size: int = BUFFER_BYTES,
) -> list[list[torch.Tensor]]:
    """All `tensors` at each place: one list for each place, in the order of `devices`.

    `buffer_size`: bytes that travel together between GPUs.
    """
    places = devices_of(devices)
    if not tensors:
        return [[] for _ in places]
    if are_different_gpus(places) and not any(
        tensor.is_complex() or tensor.device != places[0] for tensor in tensors
    ):
        return [list(part) for part in gpus.broadcast_coalesced(tensors, places, buffer_size)]
    first_at = {device: places.index(device) for device in places}
    return [
        [_copy(tensor, device, is_first=first_at[device] == slot) for tensor in tensors]
        for slot, device in enumerate(places)
    ]


def reduce_add(inputs: Sequence[torch.Tensor], destination: Place | None = None) -> torch.Tensor:
    """The sum of tensors of one shape, at `destination` (default: the current device), added in
    their order. Raises `ValueError` for another shape, `RuntimeError` if no input is there."""
    device = device_of(destination)
    for i, tensor in enumerate(inputs):
        if tensor.shape != inputs[0].shape:
            got, expected = ("x".join(map(str, shape)) for shape in (tensor.shape, inputs[0].shape))
            raise ValueError(f"input {i} has invalid size: got {got}, but expected {expected}")
    if device not in {tensor.device for tensor in inputs}:
        raise RuntimeError(
            f"reduce_add expects destination to be the device of one of the tensors, "
            f"but none is on {device}"
        )
    if len(inputs) == 1:
        return inputs[0]
    if are_different_gpus(tensor.device for tensor in inputs):
        total: torch.Tensor = gpus.reduce_add(inputs, device.index)
        return total
    first, second, *others = (begin_move(tensor, device) for tensor in inputs)
    total = first + second
    for other in others:
        # What is sparse takes nothing dense in place.
        total = total + other if total.is_sparse else total.add_(other)
    return total


def reduce_add_coalesced(
    inputs: Sequence[Sequence[torch.Tensor]],
    destination: Place | None = None,
    buffer_size: int = BUFFER_BYTES,
) -> tuple[torch.Tensor, ...]:
    """The sums of corresponding tensors: `inputs` has one sequence for each place. A sum is sparse
    if all that is added is."""
    if are_different_gpus(part[0].device for part in inputs if part) and not any(
        tensor.is_complex() for tensor in inputs[0]
    ):
        place = device_of(destination).index
        return tuple(gpus.reduce_add_coalesced(inputs, place, buffer_size))
    sums = []
    for column in zip(*inputs, strict=True):
        is_mixed = len({tensor.is_sparse for tensor in column}) > 1
        dense = [t.to_dense() if is_mixed and t.is_sparse else t for t in column]
        sums.append(reduce_add(dense, destination))
    return tuple(sums)


def scatter(
    tensor: torch.Tensor,
    devices: Iterable[Place] | None = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[Any] | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """`tensor` cut along `dim`, one piece at each place.

    As `Tensor.chunk` cuts it, or into pieces of `chunk_sizes` elements; 5 elements over 4 places
    are pieces of 2, 2 and 1. Or into the tensors `out`, with which neither `devices` nor
    `chunk_sizes` may be given (`RuntimeError`). `streams`: on which GPUs copy.
    """
    if out is not None:
        for name, value in (("devices", devices), ("chunk_sizes", chunk_sizes)):
            if value is not None:
                raise RuntimeError(
                    f"'{name}' must not be specified when 'out' is specified, "
                    f"but got {name}={value}"
                )
        _check_targets(tensor, out, dim)
        pieces = tensor.split([target.size(dim) for target in out], dim)
        for target, piece in zip(out, pieces, strict=True):
            begin_copy(target, piece)
        return tuple(out)
    places = devices_of(devices or ())
    if not places:
        raise RuntimeError("Expected at least one device to scatter to")
    if streams is not None and are_different_gpus(places) and not tensor.is_complex():
        return tuple(gpus.scatter(tensor, places, chunk_sizes, dim, streams))
    if chunk_sizes is None:
        pieces = tensor.chunk(len(places), dim)
    elif len(chunk_sizes) == len(places):
        pieces = tensor.split(list(chunk_sizes), dim)
    else:
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"{len(places)} devices and {len(chunk_sizes)} chunk_sizes"
        )
    return tuple(begin_move(piece, place) for piece, place in zip(pieces, places, strict=False))


def gather(
    tensors: Sequence[torch.Tensor],
    dim: int = 0,
    destination: Place | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`tensors` joined along `dim` at `destination` (default: the current device), or in `out`;
    with both `RuntimeError`."""
    _check_sources(tensors, dim)
    if out is not None:
        if destination is not None:
            raise RuntimeError(
                "'destination' must not be specified when 'out' is specified, "
                f"but got destination={destination}"
            )
        joined = torch.cat([begin_move(tensor, out.device) for tensor in tensors], dim)
        if joined.shape != out.shape:
            raise RuntimeError(
                f"'out' has shape {tuple(out.shape)}, but what is gathered {tuple(joined.shape)}"
            )
        return out.copy_(joined)
    if destination == -1 and accelerators.exist():
        warnings.warn(
            "Using -1 to represent CPU tensor is deprecated. Please use a "
            'device object or string instead, e.g., "cpu".',
            FutureWarning,
            stacklevel=2,
        )
    device = device_of(destination)
    return torch.cat([begin_move(tensor, device) for tensor in tensors], dim)


def _check_targets(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int) -> None:
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    for i, target in enumerate(out):
        if not _differ_along(target, tensor, dim):
            raise RuntimeError(
                f"Output tensor at index {i} has incorrect shape: {tuple(target.shape)}, which "
                f"differs from {tuple(tensor.shape)} not only along the scatter dim {dim}"
            )
    total = sum(target.size(dim) for target in out)
    if total != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match "
            f"that of the source tensor: {total} and {tensor.size(dim)}"
        )


def _check_sources(tensors: Sequence[torch.Tensor], dim: int) -> None:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    for i, tensor in enumerate(tensors):
        if tensor.dim() != tensors[0].dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but input "
                f"tensor at index {i} has {tensor.dim()}, the first one {tensors[0].dim()}"
            )
        if not _differ_along(tensor, tensors[0], dim):
            raise RuntimeError(
                f"Input tensor at index {i} has invalid shape {tuple(tensor.shape)}, which differs "
                f"from {tuple(tensors[0].shape)} not only along dimension {dim}"
            )


def _differ_along(tensor: torch.Tensor, other: torch.Tensor, dim: int) -> bool:
    """Returns whether two shapes are the same but for their lengths along `dim`."""
    one, two = list(tensor.shape), list(other.shape)
    if len(one) != len(two) or not one:
        return one == two
    del one[dim], two[dim]
    return one == two


def _copy(tensor: torch.Tensor, device: torch.device, *, is_first: bool) -> torch.Tensor:
    if tensor.device == device:
        return tensor if is_first else tensor.clone()
    return begin_move(tensor, device)
