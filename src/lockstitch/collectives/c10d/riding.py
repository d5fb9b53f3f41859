"""Small tensors of an allreduce ride on the messages between the ranks and rank 0.

The bytes go with the submission; rank 0 reduces them, in the order of positions and by the same
arithmetic as everywhere (`collectives.arithmetic`), and the result goes with its answer. So an
operation takes one round trip, and all ranks get the same bits.

Each rank decides for itself whether its tensors ride, and keeps them: where another rank's do not,
rank 0 gives an ordinary order. No I/O here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from lockstitch.collectives.arithmetic import can_reduce, element_count, reduce, scaled_copy
from lockstitch.collectives.requests import Description, Kind, dtype_named
from lockstitch.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstitch.collectives.request_cache import CachedRequest

_MOST_BYTES_OF_ALL: Final = 64 << 10
"""What comes to more than this over all ranks does not ride: all of it would go through rank 0."""


class Allowance:
    """How much of one rank rides at once, about `most_bytes`: what is submitted beyond that is
    better fused. From any thread, for a dictionary is enough of a lock."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._riding: dict[int, int] = {}
        """The bytes that ride, by number of the operation."""

    def claim(self, cached: CachedRequest, set_size: int) -> bool:
        """Returns whether this operation's tensors ride."""
        size = cached.tensor_bytes
        if cached.kind is not Kind.ALLREDUCE or not 0 < size <= self._most_bytes:
            return False
        riding = sum(list(self._riding.values()))
        if size * set_size > _MOST_BYTES_OF_ALL or riding + size > self._most_bytes:
            return False
        self._riding[cached.number] = size
        return True

    def release(self, number: int) -> None:
        """The operation is over, or goes another way; harmless where it does not ride."""
        self._riding.pop(number, None)


def packed(tensors: Iterable[torch.Tensor], factor: float = 1.0) -> bytes:
    """Returns the bytes of the tensors, scaled, one behind the other."""
    content = bytearray()
    for tensor in tensors:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        scaled_copy(tensor, factor, copy)
        content += copy.view(-1).view(torch.uint8).numpy().tobytes()
    return bytes(content)


def unpacked(content: bytes, description: Description) -> list[torch.Tensor]:
    """Returns the tensors, as they are described, whose bytes these are."""
    whole = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    tensors, begin = [], 0
    for shape, dtype in zip(description.shapes, map(dtype_named, description.dtypes), strict=True):
        end = begin + element_count(shape) * dtype.itemsize
        # A copy, for a dtype wants its alignment.
        tensors.append(whole[begin:end].clone().view(dtype).view(shape))
        begin = end
    return tensors


def checked(content: bytes, description: Description) -> bytes:
    """Returns what is to be reduced here; nothing where this torch cannot. Raises `ProtocolError`
    where the bytes are not those of tensors as they are described."""
    reduction, dtypes = description.reduction, tuple(map(dtype_named, description.dtypes))
    counts = map(element_count, description.shapes)
    size = sum(count * dtype.itemsize for count, dtype in zip(counts, dtypes, strict=True))
    if len(content) != size or description.kind is not Kind.ALLREDUCE or reduction is None:
        raise ProtocolError(f"{len(content)} bytes, which are none of {description.name!r}")
    return content if all(can_reduce(dtype, reduction.op) for dtype in dtypes) else b""


def reduced(description: Description, contents: Sequence[bytes], set_size: int) -> bytes:
    """Returns the bytes of the results. `contents`: those of the ranks that have not joined, in the
    order of positions."""
    reduction = description.reduction
    assert reduction is not None
    parts = zip(*(unpacked(content, description) for content in contents), strict=True)
    return packed(reduce(reduction, each, set_size, torch.empty_like(each[0])) for each in parts)
