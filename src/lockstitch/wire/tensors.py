"""Tensors as headers and raw memory: what crosses the wire instead of a pickled tensor.

A *header* is a tuple of plain values from which the receiver allocates a tensor of the same dtype,
shape and strides; the tensor's bytes follow, by whatever channel is cheapest. Only the part of a
storage that the tensor views is sent. Tensors of one message that overlap do so afterwards as well
(`wire.sharing`). Conjugate and negative bits are resolved elsewhere: the values are the same.

    strided, contiguous   (code, shape)
    strided, else         (code, shape, stride, offset, span)     offset and span in elements
    shares memory         (code, shape, stride, offset, length)   brings the memory, in bytes
    shares memory         (code, shape, stride, offset, item)     … with that earlier item
    sparse                (code, shape, layout, coalesced, parts) parts: headers of their own
    of another device     (code, header, device, mapped)          header: of its bytes on the host

`code` holds the dtype's number, then flags. `device` is where the tensor is, or, where it is
`mapped`, where it belongs.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd import forward_ad

from lockstitch.copying import MEMORY, move
from lockstitch.devices.kinds import is_gpu, is_host, is_on_host
from lockstitch.devices.moving import begin_fetch, stage_out
from lockstitch.errors import SerializationError
from lockstitch.torch_internals.modes import is_forward_mode, is_functorch_wrapped_tensor
from lockstitch.torch_internals.tensors import indices_of, values_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstitch.devices.maps import DeviceMap

Header = tuple[Any, ...]

# The order is part of the protocol: append only.
_DTYPE_NAMES: Final = (
    "float32 float64 float16 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128 "
    "complex32 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz uint16 uint32 uint64 "
    "float8_e8m0fnu bcomplex32"
).split()
DTYPES: Final = [getattr(torch, name, None) for name in _DTYPE_NAMES]
_CODE_OF: Final = {dtype: code for code, dtype in enumerate(DTYPES) if dtype is not None}
ITEM_SIZE: Final = [0 if dtype is None else dtype.itemsize for dtype in DTYPES]

INLINE_BYTES: Final = 16 * 1024
"""Memories of at most this size travel inside the frame, larger ones behind it."""

DTYPE_BITS = 0xFF
REQUIRES_GRAD = 0x100
PARAMETER = 0x200
STRIDED = 0x400
SHARED = 0x800
SPARSE = 0x1000
STAGED = 0x2000
CONJUGATE = 0x4000
NEGATIVE = 0x8000

_SPARSE_PARTS: Final = {
    torch.sparse_coo: (indices_of,),
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices),
}
"""What there is of each beside its values."""

LAYOUTS: Final = list(_SPARSE_PARTS)

# A view that uses less than half of a storage larger than this is sent as a compact copy.
COMPACT_ABOVE_BYTES: Final = 8 * 1024
COMPACT_FACTOR: Final = 2
_MOST_SMALL_ITEMS: Final = 8
_STRIDED: Final = torch.strided


def is_extractable(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor can cross as header and memory; others are left to their own
    pickling."""
    if tensor.is_meta:
        raise SerializationError(
            "a tensor on the meta device has no data to send; materialise it first (to_empty)"
        )
    if is_forward_mode() and _has_tangent(tensor):
        raise SerializationError(
            "a tensor with a tangent of forward-mode differentiation cannot cross, for the tangent "
            "would be lost; derivatives over workers are taken backwards: lockstitch.autograd.grad"
        )
    return (
        tensor.dtype in _CODE_OF
        and (tensor.layout is torch.strided or tensor.layout in _SPARSE_PARTS)
        and not tensor.is_nested
    )


def refuse_transformed(item: object) -> None:
    """Raises `SerializationError` for a tensor of a transform of functions, which has no data."""
    if isinstance(item, torch.Tensor) and is_functorch_wrapped_tensor(item):
        raise SerializationError(
            "a tensor inside a transform of torch.func (grad, vmap, jvp, jacrev, …) cannot cross, "
            "for the transform ends with this process; derivatives over workers are taken by "
            "lockstitch.autograd.grad, and a batch crosses as one tensor"
        )


def _has_tangent(tensor: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


class Memory:
    """The bytes of one strided tensor or buffer, and what keeps them alive."""

    __slots__ = ("address", "keep", "nbytes")

    def __init__(self, address: int, nbytes: int, keep: object) -> None:
        self.address = address
        self.nbytes = nbytes
        self.keep = keep

    def copy(self) -> bytes:
        """The bytes, copied: for small tensors, which travel inside the frame."""
        return bytes(MEMORY[self.address : self.address + self.nbytes])

    def copy_to(self, address: int) -> None:
        """Copies the bytes to where the receiver will see them. Other threads run meanwhile."""
        move(address, self.address, self.nbytes)

    def view(self) -> memoryview:
        """The bytes in place, writable: for large tensors, sent from and received into memory."""
        if not self.nbytes:
            return memoryview(b"")
        window = (ctypes.c_char * self.nbytes).from_address(self.address)
        window.keep = self.keep  # type: ignore[attr-defined]
        return memoryview(window).cast("B")


class DeviceMemory(Memory):
    """The bytes of a tensor on a CUDA device, `flat`. They are not on the host before they are
    fetched (`copy_to`), nor there before that is waited for; then `settle` says where."""

    __slots__ = ("flat",)

    def __init__(self, flat: torch.Tensor) -> None:
        super().__init__(0, flat.nbytes, flat)
        self.flat = flat

    def copy_to(self, address: int) -> None:
        """Begins to copy the bytes to host memory."""
        if self.nbytes:
            begin_fetch(self.flat, address)

    def settle(self, address: int, keep: object) -> None:
        """Notes that the bytes will be at `address`, which is valid as long as `keep` lives."""
        self.address = address
        self.keep = (self.flat, keep)


class Memories(list[Memory]):
    """The memories of one message, in order."""

    has_fetched = False
    """Whether some of them are to be fetched from a device."""


class Part(NamedTuple):
    """The place of a tensor in a memory that several items share: `first` is the item that brings
    the memory; the offset is in bytes, since they may differ in dtype, the stride in elements."""

    first: int
    offset: int
    stride: tuple[int, ...]
    memory: Memory | None


def describe(
    tensor: torch.Tensor,
    memories: list[Memory],
    parts: Mapping[int, Part],
    index: int,
    device_map: DeviceMap | None = None,
) -> Header:
    """Makes the header of `tensor`, item number `index`, and appends the memory that goes with it.

    `parts` are those of the items that share memory; see `wire.sharing`. `device_map` is that of a
    request. Raises `RuntimeError` where it says nothing of the tensor's device.
    """
    code = _CODE_OF[tensor.dtype]
    if tensor.requires_grad:
        code |= REQUIRES_GRAD
    if type(tensor) is torch.nn.Parameter:
        code |= PARAMETER
    if device_map is not None or not is_on_host(tensor):
        destination = tensor.device if device_map is None else device_map.destination(tensor.device)
        if is_on_host(tensor):
            header = describe(tensor, memories, parts, index)
        else:
            header = _describe_on_device(tensor.detach(), code, memories)
        if is_host(destination):
            return header
        return (code | STAGED, header, str(destination), device_map is not None)
    if tensor.layout is not torch.strided:
        return _describe_sparse(tensor.detach(), code, memories)
    if parts and index in parts:
        return _describe_shared(tensor, code, parts[index], memories)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    shape = tuple(tensor.shape)
    size = ITEM_SIZE[code & DTYPE_BITS]
    if not tensor.is_contiguous():
        extent = span(shape, tensor.stride())
        if extent * size <= COMPACT_ABOVE_BYTES or extent < tensor.numel() * COMPACT_FACTOR:
            memories.append(Memory(tensor.data_ptr(), extent * size, tensor))
            return (code | STRIDED, shape, tensor.stride(), 0, extent)
        tensor = tensor.detach().contiguous()
    memories.append(Memory(tensor.data_ptr(), tensor.numel() * size, tensor))
    return (code, shape)


def _describe_on_device(tensor: torch.Tensor, code: int, memories: list[Memory]) -> Header:
    if not is_gpu(tensor.device) or tensor.layout is not torch.strided:
        header = describe(stage_out(tensor), memories, {}, -1)
        return (header[0] | code, *header[1:])
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    shape, stride = tuple(tensor.shape), tensor.stride()
    is_contiguous = tensor.is_contiguous()
    if not is_contiguous and span(shape, stride) != tensor.numel():
        tensor, is_contiguous = tensor.contiguous(), True  # there, so that the gaps do not travel
    if not tensor.numel():
        memories.append(Memory(0, 0, None))
        return (code, shape)
    flat = tensor.view(-1) if is_contiguous else tensor.as_strided((tensor.numel(),), (1,))
    memories.append(DeviceMemory(flat.view(torch.uint8)))
    memories.has_fetched = True  # type: ignore[attr-defined]
    return (code, shape) if is_contiguous else (code | STRIDED, shape, stride, 0, tensor.numel())


def copy_small(items: Sequence[object]) -> tuple[tuple[Header, ...], bytes] | None:
    """Headers and bytes of all items, the short way: a few plain tensors, small and contiguous,
    that share no storage. None for all others."""
    if len(items) == 1:
        only = _copy_one(items[0])
        return None if only is None else ((only[0],), only[1])
    if len(items) > _MOST_SMALL_ITEMS:
        return None
    copies, storages = [], set()
    for item in items:
        copied = _copy_one(item)
        if copied is None:
            return None
        copies.append(copied)
        storages.add(item.untyped_storage().data_ptr())  # type: ignore[attr-defined]
    if len(storages) < len(items):
        return None
    return tuple([header for header, _ in copies]), b"".join([memory for _, memory in copies])


def _copy_one(tensor: object) -> tuple[Header, bytes] | None:
    if (
        type(tensor) is not torch.Tensor
        or not is_on_host(tensor)
        or tensor.layout is not _STRIDED
        or not tensor.is_contiguous()
        or (nbytes := tensor.nbytes) > INLINE_BYTES
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return None
    code = _CODE_OF[tensor.dtype]
    if tensor.requires_grad:
        code |= REQUIRES_GRAD
    address = tensor.data_ptr()
    return (code, tuple(tensor.shape)), bytes(MEMORY[address : address + nbytes])


def describe_plain(items: Sequence[object]) -> tuple[tuple[Header | None, ...], Memories] | None:
    """Headers and memories of all items, the short way: plain tensors, contiguous, and apart from
    each other in memory. None for all others."""
    headers: list[Header | None] = []
    memories, ranges = Memories(), []
    for item in items:
        if item is None:
            headers.append(None)
            continue
        if (
            type(item) is not torch.Tensor
            or not is_on_host(item)
            or item.layout is not _STRIDED
            or not item.is_contiguous()
            or item.is_conj()
            or item.is_neg()
        ):
            return None
        code = _CODE_OF[item.dtype]
        if item.requires_grad:
            code |= REQUIRES_GRAD
        address, nbytes = item.data_ptr(), item.nbytes
        headers.append((code, tuple(item.shape)))
        memories.append(Memory(address, nbytes, item))
        if nbytes:
            ranges.append((address, address + nbytes))
    ranges.sort()
    reached = -1
    for start, end in ranges:
        if start <= reached:  # what only touches may be parts of one storage, which cross as one
            return None
        reached = end
    return tuple(headers), memories


def is_spread(tensor: torch.Tensor) -> bool:
    """Returns whether a strided tensor views so little of what lies between its first element and
    its last that a compact copy of it is sent."""
    if tensor.is_contiguous():
        return False
    return span(tensor.shape, tensor.stride()) >= tensor.numel() * COMPACT_FACTOR


def _describe_shared(tensor: torch.Tensor, code: int, part: Part, memories: list[Memory]) -> Header:
    first, offset, stride, memory = part
    shape = tuple(tensor.shape)
    if tensor.is_conj():
        code |= CONJUGATE
    if tensor.is_neg():
        code |= NEGATIVE
    if memory is None:
        return (code | SHARED, shape, stride, offset, first)
    memories.append(memory)
    return (code | STRIDED | SHARED, shape, stride, offset, memory.nbytes)


def _describe_sparse(tensor: torch.Tensor, code: int, memories: list[Memory]) -> Header:
    layout = tensor.layout
    values = values_of(tensor) if layout is torch.sparse_coo else tensor.values()
    parts = [read(tensor) for read in _SPARSE_PARTS[layout]]
    coalesced = layout is torch.sparse_coo and tensor.is_coalesced()
    components = tuple(
        describe(part.detach().contiguous(), memories, {}, -1) for part in (*parts, values)
    )
    return (code | SPARSE, tuple(tensor.shape), LAYOUTS.index(layout), coalesced, components)


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Returns how many elements lie between the first and the last that a tensor views, both
    included."""
    extent = 1
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            return 0
        extent += (size - 1) * step
    return extent
