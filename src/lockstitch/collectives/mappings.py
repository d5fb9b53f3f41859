"""Memory that torch has not allocated itself: is it shared with other processes, may it be written?

Ranks may see one page without knowing (a file or memfd that each has mapped, tensors that were
shared before a fork, what an object store hands out). Then what one rank writes as its result is
what another one has yet to read as its contribution. So an operation on such memory works on a copy
of it, made when it is submitted, and writes nothing there but the result, as a whole, when it is
asked for: all ranks write the same. Sharing that nobody may write is refused as an output; so are
pages of Ray's object store, which every process of the host may write and none is meant to.

What torch allocates is private, and its storages can be resized; no others can. So one look at a
storage is enough nearly always. For the rest /proc/self/maps is read, once for each.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.collectives.aliasing import are_entangled, check_distinct
from lockstitch.collectives.copying import copy
from lockstitch.collectives.requests import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lockstitch.collectives.requests import Request

_MAPS: Final = Path("/proc/self/maps")
_ATTRIBUTE: Final = "_lockstitch_memory"
_SIGHTS: Final = "_lockstitch_small_sights"
# What is smaller is copied sooner than looked up, unless it comes again and again.
_LEAST_BYTES: Final = 1 << 18
_MANY_SIGHTS: Final = 8


class Sharing(enum.Enum):
    """Who else may see or write a tensor's memory."""

    PRIVATE = enum.auto()
    SHARED = enum.auto()
    READ_ONLY = enum.auto()


def is_ours(tensor: torch.Tensor) -> bool:
    """Returns whether torch has allocated its memory, for this process alone."""
    if tensor.layout is not torch.strided:
        return True  # will be refused
    storage = tensor.untyped_storage()
    return bool(storage.resizable() and not storage.is_shared())


def is_private(tensor: torch.Tensor) -> bool:
    """Returns whether its memory is known to be this process's alone: ours, or looked up (that of a
    tensor of which there is an array, say)."""
    if tensor.layout is not torch.strided:
        return True  # as above
    storage: Any = tensor.untyped_storage()
    if storage.resizable():
        return not storage.is_shared()
    return getattr(storage, _ATTRIBUTE, None) is Sharing.PRIVATE and not storage.is_shared()


def declare_private(tensor: torch.Tensor) -> None:
    """Though the memory is mapped elsewhere, too, nobody writes there unasked."""
    setattr(tensor.untyped_storage(), _ATTRIBUTE, Sharing.PRIVATE)


def sharing_of(tensor: torch.Tensor) -> Sharing:
    """Returns what the kernel knows of a tensor's memory."""
    storage: Any = tensor.untyped_storage()
    known: Sharing | None = getattr(storage, _ATTRIBUTE, None)
    if known is None or (known is Sharing.PRIVATE and storage.is_shared()):  # it has moved since
        begin = storage.data_ptr()
        known = found_in(_MAPS.read_text().splitlines(), begin, begin + storage.nbytes())
        setattr(storage, _ATTRIBUTE, known)
    return known


def found_in(lines: Iterable[str], begin: int, end: int) -> Sharing:
    """Returns what the kernel's table of mappings says of these addresses. Its lines look like
    `7f5a00000000-7f5a00021000 r--s 00000000 00:1f 42 /path`."""
    found = Sharing.PRIVATE
    for line in lines:
        place, access, _offset, _device, _inode, *path = line.split(maxsplit=5)
        low, _, high = place.partition("-")
        if int(high, 16) <= begin or end <= int(low, 16):
            continue
        if "w" not in access or _is_of_object_store(path):
            return Sharing.READ_ONLY
        if "s" in access:
            found = Sharing.SHARED
    return found


def _is_of_object_store(path: Sequence[str]) -> bool:
    """Returns whether a file is one in which Ray keeps objects, named `plasma` and six letters."""
    return bool(path) and Path(path[0].removesuffix(" (deleted)")).name.startswith("plasma")


def is_usual(request: Request) -> bool:
    """Returns whether it is what nearly all are, and nothing below matters to it: one tensor, in
    one piece of host memory that torch has allocated for this process alone, and the result goes to
    its place or to a new one."""
    tensors, outputs = request.tensors, request.outputs
    if len(tensors) != 1 or not (outputs is tensors or outputs is None):
        return False
    (tensor,) = tensors
    return tensor.is_cpu and tensor.is_contiguous() and is_private(tensor)


def must_be_copied(request: Request, rank: int) -> bool:
    """Returns whether a request may not be performed on its own tensors: they are shared with other
    processes, or have memory in common. Raises `ValueError` where a result cannot be written where
    it is wanted."""
    tensors, outputs = request.tensors, request.outputs or ()
    if outputs and not _keeps_its_own(request, rank):
        check_outputs(
            repr(request.name) if request.name else f"a nameless {request.kind.value}", outputs
        )
    if outputs is not tensors:
        tensors += outputs
    return any(map(is_shared, tensors)) or are_entangled(request)


def _keeps_its_own(request: Request, rank: int) -> bool:
    """Whether it is the sender's part of a broadcast in place: nothing is written there."""
    return (
        request.kind is Kind.BROADCAST
        and request.root == rank
        and request.outputs is request.tensors
    )


def check_outputs(what: str, outputs: Iterable[torch.Tensor]) -> None:
    """Raises `ValueError` where a result cannot be written."""
    check_distinct(what, outputs)
    check_writable(what, outputs)


def check_writable(what: str, outputs: Iterable[torch.Tensor]) -> None:
    """Raises `ValueError` where a tensor lies in memory that may only be read: the kernel ends a
    process that writes there, or others read what is in an object store."""
    for tensor in outputs:
        if is_private(tensor) or not tensor.is_cpu or not tensor.numel():
            continue
        if sharing_of(tensor) is Sharing.READ_ONLY:
            raise ValueError(
                f"{what}: its result cannot be written where it is wanted, since that tensor lies "
                "in memory that is mapped read-only, or in an object of Ray's, which others read; "
                "give a copy (tensor.clone()), or use an operation that makes a new tensor"
            )


def is_shared(tensor: torch.Tensor) -> bool:
    """Returns whether other processes may see or write a tensor's memory, as far as that matters:
    what is small passes for shared sooner than it is looked up, the first few times."""
    if not tensor.is_cpu or is_ours(tensor):
        return False
    storage: Any = tensor.untyped_storage()
    if tensor.nbytes < _LEAST_BYTES and not hasattr(storage, _ATTRIBUTE):
        sights = getattr(storage, _SIGHTS, 0) + 1
        setattr(storage, _SIGHTS, sights)
        if sights < _MANY_SIGHTS:
            return True
    return sharing_of(tensor) is not Sharing.PRIVATE


class OperationOnCopies:
    """An operation that is performed on copies of its tensors; called with the result, it copies
    that to where it is wanted."""

    def __init__(self, request: Request, rank: int) -> None:
        self._request = request
        self._is_written = _keeps_its_own(request, rank)
        self._writing = threading.Lock()
        tensors = tuple(
            torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for tensor in request.tensors
        )
        if request.kind is not Kind.BROADCAST or request.root == rank:
            for mine, tensor in zip(tensors, request.tensors, strict=True):
                copy(mine, tensor)
        self.request = replace(request, tensors=tensors, outputs=request.outputs and tensors)
        """What is to be performed."""

    def __call__(self, value: Any) -> Any:
        """The result where it is wanted: written once, however often somebody asks."""
        outputs: Sequence[torch.Tensor] | None = self._request.outputs
        if outputs is None:
            return value
        with self._writing:  # who asks meanwhile waits until it is there
            if not self._is_written:
                for output, mine in zip(outputs, self.request.tensors, strict=True):
                    copy(output, mine)
                self._is_written = True
        return list(outputs) if self._request.is_group else outputs[0]

    def abandon(self) -> None:
        """Does nothing: the operation has failed."""
