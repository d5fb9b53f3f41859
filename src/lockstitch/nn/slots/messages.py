"""Messages between the caller and a forked slot: a header, an object, and tensors in a block of
shared memory.

The object is pickled, with a number in place of each tensor handed over beside it. Tensors lie in
the block one behind the other; those that are not plain memory (sparse ones, subclasses) are
pickled too. Gradients of the leaves have one fixed layout, since they are the same each time.

    header   what, its number
    object   pickled: (blocks returned, blocks given up, block, descriptions of tensors, body)
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import torch

from lockstitch.memory.mailbox import LARGEST
from lockstitch.memory.sizes import aligned
from lockstitch.nn.slots.memory import BlockName
from lockstitch.torch_internals.tensors import copy_many, unflatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.nn.slots.answers import Key
    from lockstitch.nn.slots.memory import MappedBlock, OwnedMemory, ReadMemory

_HEADER: Final = struct.Struct("<BQ")
_DTYPES: Final = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.complex64, torch.complex128),
]
_CODES: Final = {dtype: code for code, dtype in enumerate(_DTYPES)}

_Name = tuple[int, int, int]
"""A `BlockName` as it is sent: a plain tuple is pickled in a third of the time."""

_Description = tuple[int, "tuple[int, ...]", "tuple[int, ...] | None", int]
"""How a tensor lies in the block: code of its dtype, shape, strides unless contiguous, offset."""


class Leaves:
    """The fixed layout of the leaves' gradients."""

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self.count = len(leaves)
        # unflatten_dense_tensors wants examples; these take no memory.
        self._groups: list[tuple[torch.dtype, int, int, list[int], list[torch.Tensor]]] = []
        self.size = 0
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            members = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype and leaf.numel()]
            shapes = [torch.empty(leaves[i].shape, dtype=dtype, device="meta") for i in members]
            elements = sum(each.numel() for each in shapes)
            if elements:
                self._groups.append((dtype, elements, self.size, members, shapes))
            self.size += aligned(elements * dtype.itemsize)
        self._empty = {
            i: (leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves) if not leaf.numel()
        }
        self._views: dict[int, tuple[MappedBlock, list[torch.Tensor]]] = {}

    def fill(
        self, block: MappedBlock, gradients: Sequence[torch.Tensor | None], dense: Sequence[int]
    ) -> None:
        """Copies those of these numbers there."""
        views = self._views_in(block)
        if len(dense) < len(views):
            views, gradients = [views[i] for i in dense], [gradients[i] for i in dense]
        if dense:
            copy_many(views, list(gradients))  # type: ignore[arg-type]

    def _views_in(self, block: MappedBlock) -> list[torch.Tensor]:
        kept = self._views.get(block.name.number)
        if kept is None or kept[0] is not block:
            if len(self._views) > 8:
                self._views.clear()
            with torch.inference_mode(mode=False):  # they are kept
                kept = self._views[block.name.number] = block, self.views(block.bytes)
        return kept[1]

    def views(self, memory: Any) -> list[torch.Tensor]:
        """All gradients as they lie in `memory`, a tensor of bytes or what offers its memory."""
        found: dict[int, torch.Tensor] = {
            i: torch.empty(shape, dtype=dtype, device="cpu")
            for i, (shape, dtype) in self._empty.items()
        }
        for dtype, elements, offset, members, shapes in self._groups:
            if isinstance(memory, torch.Tensor):
                flat = memory[offset : offset + elements * dtype.itemsize].view(dtype)
            else:
                flat = torch.frombuffer(memory, dtype=dtype, count=elements, offset=offset)
            parts = unflatten(flat, shapes)
            found.update(zip(members, parts, strict=True))
        return [found[i] for i in range(self.count)]


class MessageCodec:
    """Writes and reads the messages of one side."""

    def __init__(self, own: OwnedMemory, other: ReadMemory, leaves: Leaves) -> None:
        self._own = own
        self._other = other
        self._leaves = leaves

    def encode(
        self,
        key: Key,
        body: Any,
        tensors: Sequence[torch.Tensor | None] = (),
        leaves: Sequence[torch.Tensor | None] | None = None,
    ) -> bytes:
        """A message of `body` and `tensors`, and of the leaves' gradients if there are any."""
        descriptions, block = self._store(tensors)
        gradients = None if leaves is None else self._store_leaves(leaves)
        content = (self._other.returned(), block, descriptions, gradients, body)
        message = _HEADER.pack(*key) + _dumps(content)
        if len(message) <= LARGEST:
            return message
        # By the same route as tensors.
        bytes_block = self._own.allocate(len(message))
        memory = memoryview(bytes_block.bytes.numpy())  # type: ignore[arg-type]
        memory[: len(message)] = message
        pointer: Any = ([], bytes_block.name, len(message), None, _IS_LARGE)
        return _HEADER.pack(*key) + _dumps(pointer)

    def key(self, message: Any) -> Key:
        """What a message is about; cannot fail."""
        what, number = _HEADER.unpack_from(message)
        return what, number

    def decode(self, message: Any) -> tuple[Any, list[Any], list[Any] | None]:
        """The body of a message, its tensors, and the gradients of the leaves."""
        content = pickle.loads(memoryview(message)[_HEADER.size :])
        returned, name, descriptions, gradients, body = content
        if body == _IS_LARGE:
            memory = memoryview(self._other.open(name))
            return self.decode(memory.cast("B")[:descriptions])
        self._own.take_back(returned)
        tensors = self._load(name, descriptions)
        return body, tensors, None if gradients is None else self._load_leaves(*gradients)

    def _store(
        self, tensors: Sequence[torch.Tensor | None]
    ) -> tuple[list[_Description | bytes | None], _Name | None]:
        descriptions: list[_Description | bytes | None] = []
        size = 0
        for tensor in tensors:
            if tensor is None or _is_odd(tensor):
                descriptions.append(None if tensor is None else _pickled(tensor))
                continue
            shape = tuple(tensor.shape)
            strides = None if tensor.is_contiguous() else _dense_strides(tensor)
            descriptions.append((_CODES[tensor.dtype], shape, strides, size))
            size += aligned(tensor.numel() * tensor.itemsize)
        if not size:
            return descriptions, None
        block = self._own.allocate(size)
        for tensor, described in zip(tensors, descriptions, strict=True):
            if tensor is not None and type(described) is tuple:
                code, shape, strides, offset = described
                block.kept(offset, _DTYPES[code], shape, strides).copy_(tensor)
        return descriptions, (*block.name,)

    def _load(self, name: BlockName | None, descriptions: Sequence[Any]) -> list[Any]:
        memory = None if name is None else self._other.open(BlockName(*name))
        tensors: list[Any] = []
        for described in descriptions:
            if type(described) is not tuple:
                tensors.append(None if described is None else _unpickled(described))
                continue
            code, shape, strides, offset = described
            dtype = _DTYPES[code]
            count = _numel(shape)
            if memory is None or not count:
                tensors.append(torch.empty(shape, dtype=dtype, device="cpu"))
                continue
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
            if strides is not None:
                tensors.append(flat.as_strided(shape, strides))
            else:
                tensors.append(flat if len(shape) == 1 else flat.view(shape))
        return tensors

    def _store_leaves(self, gradients: Sequence[torch.Tensor | None]) -> Any:
        odd = {
            i: _pickled(each)
            for i, each in enumerate(gradients)
            if each is not None and _is_odd(each)
        }
        size = self._leaves.size
        if not size:
            return None, [], odd
        block = self._own.allocate(size)
        dense = [i for i, each in enumerate(gradients) if each is not None and i not in odd]
        self._leaves.fill(block, gradients, dense)
        return tuple(block.name), None if len(dense) == len(gradients) else dense, odd

    def _load_leaves(
        self, name: BlockName | None, dense: list[int] | None, odd: dict[int, bytes]
    ) -> list[Any]:
        if name is None:
            gradients: list[Any] = [None] * self._leaves.count
        else:
            gradients = self._leaves.views(self._other.open(BlockName(*name)))
        if dense is not None:
            there = set(dense)
            gradients = [each if i in there else None for i, each in enumerate(gradients)]
        for i, pickled in odd.items():
            gradients[i] = _unpickled(pickled)
        return gradients


_IS_LARGE: Final = "in the block"


def _is_odd(tensor: torch.Tensor) -> bool:
    """Whether it is more than memory, a dtype and strides."""
    return (
        tensor.layout is not torch.strided
        or tensor.dtype not in _CODES
        or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        or not tensor.is_cpu
        or tensor.is_conj()
        or tensor.is_neg()
    )


def _dumps(content: Any) -> bytes:
    try:
        return pickle.dumps(content, 5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(content, 5)  # type: ignore[no-any-return]


def _pickled(tensor: torch.Tensor) -> bytes:
    return pickle.dumps(tensor.detach(), 5)


def _unpickled(data: bytes) -> Any:
    return pickle.loads(data)


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The order of dimensions kept (channels last, say), gaps and overlaps left out."""
    return tuple(torch.empty_like(tensor, device="meta").stride())
