"""Tensors arriving: allocated from their headers, filled from the frame or behind it.

Small memories lie in the frame itself, one behind the other, and are copied out at once; a large
one becomes a target, into which the stream is then received in place (`windows`: where there is
nothing left to receive). What is announced is checked
against the frame's lengths before memory is allocated for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.copying import MEMORY, move
from lockstitch.devices.kinds import HOST
from lockstitch.errors import RemoteProtocolError
from lockstitch.modes import are_plain, plain_modes
from lockstitch.torch_internals.tensors import (
    check_compressed,
    check_sparse,
    indices_of,
    negative_view,
    values_of,
)
from lockstitch.wire.tensors import (
    CONJUGATE,
    DTYPE_BITS,
    DTYPES,
    INLINE_BYTES,
    ITEM_SIZE,
    LAYOUTS,
    NEGATIVE,
    PARAMETER,
    REQUIRES_GRAD,
    SHARED,
    SPARSE,
    STAGED,
    STRIDED,
    Memory,
    span,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.memory.leases import SegmentLease
    from lockstitch.wire.tensors import Header

Allocate = Callable[[int], Any]
"""Gives memory for so many bytes as a writable buffer, or None."""

_UINT8: Final = DTYPES.index(torch.uint8)
_FINISHED_LATER: Final = DTYPE_BITS | REQUIRES_GRAD | PARAMETER
# Allocating like a tensor that is at hand is quicker than from a shape.
_MOST_PROTOTYPES: Final = 256
_MOST_ELEMENTS: Final = (1 << 62) - 1
_WITH_REAL_VIEW: Final = (torch.complex64, torch.complex128)
_prototypes: Final[dict[tuple[int, tuple[int, ...]], tuple[torch.Tensor, int]]] = {}
"""Dtype and shape → a tensor of that form, and how many bytes it has."""


class TensorReceiver:
    """The items of one message. `address` is that of the frame's small memories, `small_length` and
    `bulk_length` are the lengths of what lies in the frame and behind it; `allocate` may have
    memory for the latter."""

    __slots__ = ("_address", "_allocate", "_bases", "_bulk", "_small", "items", "targets")

    shared_memory: SegmentLease | None = None
    """Where the large items lie, if that is not memory of this process alone."""

    def __init__(
        self,
        address: int,
        small_length: int,
        bulk_length: int,
        allocate: Allocate | None = None,
    ) -> None:
        self._allocate = allocate
        self.items: list[Any] = []
        self.targets: list[memoryview] = []
        self._address = address
        self._small = small_length
        self._bulk = bulk_length
        self._bases: dict[int, _Base] | None = None

    def add_all(self, headers: Iterable[Header | int | None]) -> None:
        """Appends the items of all headers. Whoever reads may do so for another thread, so the
        modes of this one do not count: neither inference, nor a default device, nor no_grad, which
        views would remember."""
        if not are_plain() or not torch.is_grad_enabled():
            with plain_modes(), torch.inference_mode(mode=False):
                self.add_all(headers)
            return
        for header in headers:
            self.add(header)

    def add(self, header: Header | int | None) -> None:
        """Appends the item of that header: a tensor, a buffer of so many bytes, or None."""
        if header is None:
            self.items.append(None)
        else:
            try:
                item = self._buffer(header) if isinstance(header, int) else self._tensor(header)
                self.items.append(item)
            except (TypeError, ValueError, IndexError, KeyError, RuntimeError) as error:
                if isinstance(error, RemoteProtocolError):
                    raise
                raise RemoteProtocolError(f"a tensor header makes no sense: {header!r}") from error

    def add_stream(self, length: int) -> memoryview:
        """A large pickle stream, received in place."""
        self._announce(length)
        stream = memoryview(bytearray(length))
        self.targets.append(stream)
        return stream

    def check_complete(self) -> None:
        """Everything that the frame's lengths announce has been claimed."""
        if self._small or self._bulk:
            raise RemoteProtocolError("a frame is longer than its tensors need")

    def _announce(self, size: int) -> None:
        """Claims `size` bytes of the frame's lengths, before they are allocated."""
        if size > INLINE_BYTES:
            self._bulk -= size
        else:
            self._small -= size
        if self._small < 0 or self._bulk < 0 or size < 0:
            raise RemoteProtocolError("a frame is shorter than its tensors need")

    def _fill(self, tensor: torch.Tensor, size: int) -> torch.Tensor:
        """Copies a small memory out of the frame."""
        if size:
            move(tensor.data_ptr(), self._address, size)
            self._address += size
        return tensor

    def _large(self, index: int, shape: tuple[int, ...], size: int) -> torch.Tensor:
        """A tensor of `size` bytes, of dtype number `index`, to be filled from behind the frame."""
        memory = None if self._allocate is None else self._allocate(size)
        if memory is None:
            tensor = torch.empty(shape, dtype=DTYPES[index], device=HOST)
        else:
            tensor = view_of(memory, index, shape, 0)
        self.targets.append(Memory(tensor.data_ptr(), size, tensor).view())
        return tensor

    def _bytes(self, length: int) -> torch.Tensor:
        if length > INLINE_BYTES:
            return self._large(_UINT8, (length,), length)
        return self._fill(torch.empty(length, dtype=torch.uint8, device=HOST), length)

    def _buffer(self, length: int) -> memoryview:
        self._announce(length)
        if not length:
            return memoryview(bytearray())
        buffer = self._bytes(length)
        return Memory(buffer.data_ptr(), length, buffer).view()

    def _tensor(self, header: Header) -> torch.Tensor:
        code = header[0]
        if code & STAGED:
            _, inner, device, is_mapped = header
            if type(device) is not str or type(is_mapped) is not bool:
                raise TypeError("a device is named by a string")
            return self._tensor(inner)
        if code & SPARSE:
            return self._sparse(header)
        if code & SHARED:
            return self._sharing(header)
        if code & STRIDED:
            _, shape, stride, offset, extent = header
            return self._contiguous(code, (extent,)).as_strided(shape, stride, offset)
        return self._contiguous(code, header[1])

    def _contiguous(self, code: int, shape: tuple[int, ...]) -> torch.Tensor:
        index = code & DTYPE_BITS
        size = ITEM_SIZE[index]
        for extent in shape:
            if type(extent) is not int or not 0 <= extent <= _MOST_ELEMENTS:
                raise ValueError(f"{shape!r} is no shape")
            size *= extent
        self._announce(size)
        if size > INLINE_BYTES:
            return self._large(index, shape, size)
        known = _prototypes.get((index, shape))
        if known is None:
            known = torch.empty(shape, dtype=DTYPES[index], device=HOST), size
            if len(_prototypes) < _MOST_PROTOTYPES:
                _prototypes[index, shape] = known
        return self._fill(torch.empty_like(known[0]), size)

    def _sharing(self, header: Header) -> torch.Tensor:
        code, shape, stride, offset, extent = header
        if not all(type(each) is int and each <= _MOST_ELEMENTS for each in (*shape, *stride)):
            raise ValueError(f"{shape!r} or {stride!r} is not made of sizes")
        if self._bases is None:
            self._bases = {}
        if code & STRIDED:  # the first of those that share a memory: it brings the bytes
            self._announce(extent)
            base = self._bases[len(self.items)] = _Base(self._bytes(extent))
        else:
            base = self._bases[extent]
        tensor = base.view(DTYPES[code & DTYPE_BITS], shape, stride, offset)
        if code & CONJUGATE:
            tensor = tensor.conj()
        if code & NEGATIVE:
            tensor = negative_view(tensor)
        # Leaves know nothing of each other, but see that they were written to.
        return tensor.detach() if code & (REQUIRES_GRAD | PARAMETER) else tensor

    def _sparse(self, header: Header) -> torch.Tensor:
        _, shape, layout_index, coalesced, components = header
        parts = [self._tensor(component) for component in components]
        layout = LAYOUTS[layout_index]
        # Large parts are filled later: nothing here may look at values.
        if layout is torch.sparse_coo:
            indices, values = parts
            return torch.sparse_coo_tensor(
                indices, values, shape, is_coalesced=coalesced, check_invariants=False
            )
        compressed, plain, values = parts
        return torch.sparse_compressed_tensor(
            compressed, plain, values, shape, layout=layout, check_invariants=False
        )


class _Base:
    """A memory that several items share. Those of one dtype, or of one and its complex counterpart,
    are views of one tensor to torch, so that its autograd sees a write to one of them in all; all
    have one version counter, by which it sees that what it has saved was overwritten."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._typed: dict[torch.dtype | None, torch.Tensor] = {}

    def view(self, dtype: torch.dtype | None, shape: Any, stride: Any, offset: int) -> torch.Tensor:
        """A tensor of that form, `offset` bytes from the beginning."""
        if dtype is None:
            raise TypeError("this torch has no such dtype")
        start, fraction = divmod(offset, dtype.itemsize)
        # The storage may go on behind this memory.
        if fraction or (start + span(shape, stride)) * dtype.itemsize > self._memory.numel():
            raise ValueError("a tensor that does not lie within the memory that it shares")
        if dtype in _WITH_REAL_VIEW:
            real = self._of(dtype.to_real())
            pairs = real[: real.numel() // 2 * 2].view(-1, 2)
            return torch.view_as_complex(pairs).as_strided(shape, stride, start)
        return self._of(dtype).as_strided(shape, stride, start)

    def _of(self, dtype: torch.dtype) -> torch.Tensor:
        typed = self._typed.get(dtype)
        if typed is None:
            whole = self._memory.numel() // dtype.itemsize * dtype.itemsize
            typed = self._typed[dtype] = self._memory[:whole].view(dtype).detach()
        return typed


def take_small(headers: tuple[Any, ...], address: int, length: int) -> list[torch.Tensor] | None:
    """All items of a message, `length` bytes from `address` on, the short way: contiguous tensors
    of forms that have come before. None for all others."""
    tensors = []
    try:
        for code, shape in headers:
            known = None if code & ~_FINISHED_LATER else _prototypes.get((code & DTYPE_BITS, shape))
            if known is None:
                return None
            prototype, size = known
            length -= size
            if length < 0:
                return None
            tensor = torch.empty_like(prototype)
            place, end = tensor.data_ptr(), address + size
            MEMORY[place : place + size] = MEMORY[address:end]
            address = end
            tensors.append(tensor)
    except (TypeError, ValueError):  # it is another kind of header, or none
        return None
    return None if length else tensors


def view_of(memory: Any, index: int, shape: tuple[int, ...], offset: int) -> torch.Tensor:
    """A tensor of dtype number `index` that lies in a writable buffer and keeps it."""
    dtype = DTYPES[index]
    if dtype is None:
        raise TypeError(f"this torch has no dtype number {index}")
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)


def finish(header: Header | int | None, item: Any, *, as_leaf: bool) -> Any:
    """Restores what is no property of the memory: `requires_grad`, being a Parameter. Not so where
    the tensor belongs to another device: see `wire.staging`.

    With `as_leaf` False the tensor is about to be stitched onto the graph and stays plain.
    """
    if not isinstance(header, tuple):
        return item
    code = header[0]
    if code & SPARSE or (code & STAGED and header[1][0] & SPARSE):
        _check_sparse(item)
    if code & STAGED:
        return item
    if not as_leaf:
        # It may lie beside others of its stitch: writes to these are none to it.
        return item.data if code & SHARED else item
    if code & PARAMETER:
        return torch.nn.Parameter(item, requires_grad=bool(code & REQUIRES_GRAD))
    if code & REQUIRES_GRAD:
        item.requires_grad_(True)
    return item


def _check_sparse(tensor: torch.Tensor) -> None:
    """Raises RuntimeError where indices point outside the tensor, which torch's kernels would
    follow into other memory."""
    if tensor.layout is torch.sparse_coo:
        check_sparse(indices_of(tensor), values_of(tensor), tensor.shape, tensor.is_coalesced())
        return
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed = tensor.crow_indices() if by_row else tensor.ccol_indices()
    plain = tensor.col_indices() if by_row else tensor.row_indices()
    check_compressed(compressed, plain, tensor.values(), tensor.shape, tensor.layout)
