"""Messages → frames (`wire.frames` says what those are)."""

from __future__ import annotations

import marshal
import typing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy
import torch

from lockstitch.copying import move
from lockstitch.errors import LocalProtocolError
from lockstitch.memory.sizes import aligned
from lockstitch.wire.frames import (
    DEFAULT_LIMITS,
    HEADER,
    IN_SEGMENT,
    FrameLimits,
    Lend,
    digest_of,
)
from lockstitch.wire.layouts import layout_of
from lockstitch.wire.messages import SharedPayload
from lockstitch.wire.sharing import find_shared, overlaps_itself
from lockstitch.wire.staging import Fetching
from lockstitch.wire.tensors import (
    INLINE_BYTES,
    Memories,
    Memory,
    Part,
    copy_small,
    describe,
    describe_plain,
    refuse_transformed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.devices.maps import DeviceMap
    from lockstitch.memory.host_copies import HostCopies
    from lockstitch.memory.leases import Loan
    from lockstitch.wire.layouts import Layout
    from lockstitch.wire.messages import Message

_pack_header = HEADER.pack
_dumps = marshal.dumps
_VERSION: Final = 2  # the last that looks up no value among those before it: half the time


def encode(
    message: Message,
    limits: FrameLimits = DEFAULT_LIMITS,
    lend: Lend | None = None,
    with_digests: bool = False,
    device_map: DeviceMap | None = None,
) -> list[Any]:
    """The frame of `message` as buffers to be sent in order (one, where it is small).

    What `lend` lends is used for large items. `with_digests`: see `wire.authentication`.
    `device_map`: see `wire.tensors.describe`. Raises `LocalProtocolError` where the message
    exceeds `limits`, `SerializationError` where a tensor has no data.
    """
    layout = layout_of(type(message))
    values = layout.values(message)
    nbytes = 0
    if layout.has_body:
        items = values[-1]
        is_long = len(values[-2]) > INLINE_BYTES
        if items or is_long:
            try:
                small = copy_small(items) if device_map is None and not is_long else None
                if small is None:
                    body = message.body  # type: ignore[attr-defined]
                    if lend is not None and type(body) is SharedPayload:
                        lend = _LendToSeveral(lend, body.copies)
                    return _encode_items(layout, values, limits, lend, with_digests, device_map)
            except RuntimeError:
                for item in items:
                    refuse_transformed(item)
                raise
            headers, memory = small
            nbytes = len(memory)
            inline = _dumps((*values[:-1], headers), _VERSION) + memory
        else:
            inline = _dumps(values if type(items) is tuple else (*values[:-1], ()), _VERSION)
    else:
        inline = _dumps(values, _VERSION)
    if len(inline) > limits.inline_bytes:
        raise _too_long(len(inline), limits)
    return [_pack_header(len(inline), layout.kind, 0, 0, nbytes, 0) + inline]


def _too_long(nbytes: int, limits: FrameLimits) -> LocalProtocolError:
    return LocalProtocolError(
        f"a message of {nbytes:,} bytes exceeds what a frame may hold ({limits.inline_bytes:,} "
        f"bytes inline, {limits.bulk_bytes:,} in bulk): send less at a time"
    )


def _encode_items(
    layout: Layout,
    values: tuple[Any, ...],
    limits: FrameLimits,
    lend: Lend | None,
    with_digests: bool,
    device_map: DeviceMap | None,
) -> list[Any]:
    *fields, encoding, stream, items = values
    plain = describe_plain(items) if device_map is None else None
    if plain is None:
        stitch = None if layout.stitch is None else fields[layout.stitch]
        plain = _describe_items(items, frozenset(stitch[2] if stitch else ()), device_map)
    headers, memories = plain
    large = [memory for memory in memories if memory.nbytes > INLINE_BYTES]
    announced: Any = stream
    if len(stream) > INLINE_BYTES:
        large.insert(0, _BufferMemory(memoryview(stream)))
        announced = (len(stream), digest_of(stream)) if with_digests else len(stream)
    if memories.has_fetched:  # they cannot be read yet
        small_length = sum([each.nbytes for each in memories if each.nbytes <= INLINE_BYTES])
    else:
        small_bytes = b"".join([each.copy() for each in memories if each.nbytes <= INLINE_BYTES])
        small_length = len(small_bytes)
    bulk_length = sum([memory.nbytes for memory in large])
    announcement = _dumps((*fields, encoding, announced, headers), _VERSION)
    inline_length = len(announcement) + small_length
    if inline_length > limits.inline_bytes or bulk_length > limits.bulk_bytes:
        raise _too_long(inline_length + bulk_length, limits)
    if len(items) > limits.items:
        raise LocalProtocolError(
            f"a message of {len(items):,} tensors exceeds the limit of {limits.items:,}"
        )
    loan, bulk, is_filled = None, bulk_length, False
    if large and lend is not None:
        bulk = sum([aligned(memory.nbytes) for memory in large])
        if type(lend) is _LendToSeveral and not memories.has_fetched:
            loan = lend.filled(large, bulk)
            is_filled = loan is not None
        loan = loan or lend(bulk)
    if memories.has_fetched:
        _fetch(memories, large, loan)
        small_bytes = b"".join([each.copy() for each in memories if each.nbytes <= INLINE_BYTES])
    elif loan is not None and not is_filled:
        _fill(loan, large)
    inline, kind = announcement + small_bytes, layout.kind
    if loan is not None:
        return [
            _pack_header(len(inline), kind, IN_SEGMENT, loan.number, small_length, bulk) + inline
        ]
    header = _pack_header(len(inline), kind, 0, 0, small_length, bulk_length)
    return [header + inline, *[memory.view() for memory in large]]


class _LendToSeveral:
    """A `Lend` for a message that goes to several: what one of them has got already is not copied
    again."""

    __slots__ = ("_copies", "_lend")

    def __init__(self, lend: Lend, copies: HostCopies) -> None:
        self._lend = lend
        self._copies = copies

    def __call__(self, nbytes: int) -> Loan | None:
        return self._lend(nbytes)

    def filled(self, memories: list[Memory], nbytes: int) -> Loan | None:
        """Memory in which these lie already, for this receiver; None: they have to be copied."""
        return self._lend(nbytes, partial(self._copies.copy_of, memories, nbytes))


def _fill(loan: Loan, memories: list[Memory]) -> None:
    """Copies memories to where the receiver will look for them."""
    try:
        address = loan.address
        for memory in memories:
            memory.copy_to(address)
            address += aligned(memory.nbytes)
    except BaseException:  # an interrupt: nothing has been sent yet
        loan.cancel()
        raise


def _fetch(memories: Memories, large: list[Memory], loan: Loan | None) -> None:
    """Brings what devices hold to the host, all of it at once, and fills the loan."""
    fetching = Fetching(memories)
    try:
        fetching.begin_small()
        if loan is None:
            fetching.begin_large()
        else:
            loan.pin()
            address = loan.address
            for memory in large:
                memory.copy_to(address)
                address += aligned(memory.nbytes)
        fetching.wait()
    except BaseException:
        fetching.wait()  # others may be lent the memory
        if loan is not None:
            loan.cancel()
        raise


def _describe_items(
    items: Sequence[Any], stitched: frozenset[int], device_map: DeviceMap | None
) -> tuple[tuple[Any, ...], Memories]:
    """The headers of all items, and the memories that go with them."""
    memories = Memories()
    if stitched:
        items = [
            _without_overlaps(item) if index in stitched else item
            for index, item in enumerate(items)
        ]
    parts = find_shared(items, stitched) if len(items) > 1 else {}
    headers = [
        _describe_item(item, memories, parts, index, device_map) for index, item in enumerate(items)
    ]
    return tuple(headers), memories


def _describe_item(
    item: Any,
    memories: Memories,
    parts: dict[int, Part],
    index: int,
    device_map: DeviceMap | None,
) -> Any:
    if item is None:
        return None
    if isinstance(item, torch.Tensor):
        return describe(item, memories, parts, index, device_map)
    view = item.cast("B") if item.format != "B" or item.ndim != 1 else item
    memories.append(_BufferMemory(view))
    return view.nbytes


def _without_overlaps(item: torch.Tensor) -> torch.Tensor:
    """A tensor of a stitch shares no memory, nor do its elements: see `wire.sharing`."""
    if item.layout is torch.strided and not item.is_contiguous() and overlaps_itself(item):
        return item.detach().contiguous()
    return item


class _BufferMemory(Memory):
    """The memory of an out-of-band buffer, which Python's buffer protocol keeps in place."""

    __slots__ = ()

    def __init__(self, view: memoryview) -> None:
        super().__init__(0, view.nbytes, view)

    def copy(self) -> bytes:
        return bytes(typing.cast("memoryview", self.keep))

    def copy_to(self, address: int) -> None:
        # As an array, because its address can be had even where it is read-only.
        source = numpy.frombuffer(typing.cast("memoryview", self.keep), dtype=numpy.uint8)
        move(address, source.ctypes.data, self.nbytes)

    def view(self) -> memoryview:
        return typing.cast("memoryview", self.keep)
