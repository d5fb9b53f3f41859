"""Bytes → messages: where a stream of frames (`wire.frames`) is cut up.

Nothing here does I/O: the decoder is given bytes, or says where bytes are to be put.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.errors import RemoteProtocolError
from lockstitch.modes import in_plain_modes
from lockstitch.wire.frames import (
    DEFAULT_LIMITS,
    HEADER,
    HEADER_BYTES,
    IN_SEGMENT,
    FrameLimits,
    Window,
    digest_of,
)
from lockstitch.wire.layouts import Layout, layout_of, strict_layout_of
from lockstitch.wire.messages import KINDS, Message, Payload
from lockstitch.wire.scanning import check_marshal
from lockstitch.wire.staging import StagedPayload
from lockstitch.wire.tensor_receiver import Allocate, TensorReceiver, finish
from lockstitch.wire.tensors import DTYPE_BITS, STAGED
from lockstitch.wire.windows import WindowTensorReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.memory.leases import SegmentLease

_read_header = HEADER.unpack_from


class IncomingFrame:
    """A frame whose inline part has arrived; `targets` is where its bulk is to be put, in order."""

    __slots__ = (
        "_body",
        "_digest",
        "_headers",
        "_items",
        "_layout",
        "_values",
        "_window",
        "targets",
    )

    def __init__(
        self,
        layout: Layout,
        loaded: tuple[Any, ...],
        most_items: int,
        receiver: TensorReceiver,
        *,
        is_authenticated: bool = False,
    ) -> None:
        self._layout = layout
        self._values = list(loaded[: layout.count])
        layout.restore(self._values)
        self.targets: Sequence[memoryview] = ()
        self._digest: bytes | None = b"" if is_authenticated else None
        if layout.has_body:
            self._take_body(loaded[-3:], most_items, receiver)
        receiver.check_complete()

    def _take_body(self, body: tuple[Any, ...], most_items: int, receiver: TensorReceiver) -> None:
        encoding, stream, headers = body
        if type(headers) is not tuple:
            raise RemoteProtocolError("the items of a payload are not announced by a tuple")
        if len(headers) > most_items:
            raise RemoteProtocolError(f"a frame with {len(headers):,} tensors exceeds the limit")
        if self._digest is not None and type(stream) is tuple and len(stream) == 2:
            stream, self._digest = stream
            if type(stream) is not int or type(self._digest) is not bytes or not self._digest:
                raise RemoteProtocolError("the stream of a payload is announced by nonsense")
        elif self._digest is not None and type(stream) is int:
            raise RemoteProtocolError("the stream of a payload is announced without a digest")
        if type(stream) is int:
            stream = receiver.add_stream(stream)
        elif type(stream) is not bytes:
            raise RemoteProtocolError(f"the stream of a payload is a {type(stream).__name__}")
        receiver.add_all(headers)
        self._body = (encoding, stream)
        self._headers = headers
        self._items = receiver.items
        self.targets = receiver.targets
        self._window = receiver.shared_memory

    def message(self) -> Message:
        """The message; call it when all `targets` are filled."""
        layout = self._layout
        cls = layout.cls
        if not layout.has_body:
            return cls(*self._values)
        if self._digest and digest_of(self._body[1]) != self._digest:
            raise RemoteProtocolError("a stream has been changed on its way")
        if self._items:
            stitch = self._values[layout.stitch] if layout.stitch is not None else None
            try:
                staged = self._finish_items(stitch.tensors if stitch is not None else ())
            except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
                raise RemoteProtocolError(f"a tensor of a {cls.__name__} makes no sense") from error
            if staged is not None:
                body = StagedPayload(*self._body, self._items)
                body.staged, body.window = staged, self._window
                return cls(*self._values, body)  # type: ignore[call-arg]
        return cls(*self._values, Payload(*self._body, self._items or ()))  # type: ignore[call-arg]

    def _finish_items(self, stitched: tuple[int, ...]) -> dict[int, tuple[Any, bool]] | None:
        """Finishes all items but those that belong to other devices, which it returns."""
        items, staged = self._items, None
        for index, header in enumerate(self._headers):
            if type(header) is tuple and header[0] > DTYPE_BITS:
                as_leaf = index not in stitched
                items[index] = finish(header, items[index], as_leaf=as_leaf)
                if header[0] & STAGED:
                    staged = staged or {}
                    staged[index] = header, as_leaf
        return staged


class FrameDecoder:
    """Cuts one stream of bytes into messages; knows at any time where the next bytes belong.

    Use: let a receiver put bytes into `space()` and append their number to `counts`, then call
    `absorb()`; whole messages are then found in `messages`, oldest first.

    An interrupt (Ctrl-C) may strike wherever a function is entered or has returned. So that no byte
    and no message is ever lost or doubled, a count stays in `counts` until the very statement that
    adds it up, a message stays in `messages` until its reader removes it, and every step changes
    all that it changes without a call in between. Whoever finds the decoder `is_torn`, or counts in
    it, was preceded by a reader who was struck, and calls `absorb` before anything else.

    `window` opens what the sender has lent; `allocate` gives memory for what arrives in the stream,
    as a buffer of that size or more, or None. `is_authenticated`: see `wire.authentication`;
    `is_strict`: see `wire.scanning`.
    """

    def __init__(
        self,
        limits: FrameLimits = DEFAULT_LIMITS,
        capacity: int = 128 * 1024,
        *,
        window: Window | None = None,
        allocate: Allocate | None = None,
        is_authenticated: bool = False,
        is_strict: bool = False,
    ) -> None:
        self._open_window = window
        self._is_strict = is_strict
        self._layout_of: Callable[[type[Message]], Layout] = (
            strict_layout_of if is_strict else layout_of
        )
        self._layouts: dict[int, Layout] = {}
        self.is_authenticated = is_authenticated
        self.is_open = False
        """Whether the frame at `start` may be read, where frames are authenticated."""
        self._allocate = allocate
        self.counts: list[int] = []
        self.messages: deque[Message] = deque()
        self.is_torn = False
        self._limits = limits
        self._capacity = capacity
        self._start = 0
        self._end = 0
        self._frame: IncomingFrame | None = None
        self._target = 0
        self._filled = 0
        self._buffer, self._view = _allocate(capacity)
        self._address = self._buffer.data_ptr()

    @property
    def position(self) -> tuple[int, ...]:
        """A mark of how far the stream has been read: it is another one whenever bytes have
        come."""
        return self._start, self._end, self._target, self._filled

    def space(self) -> memoryview:
        """Where the next bytes of the stream are to be put; never empty."""
        frame = self._frame
        if frame is not None:
            return frame.targets[self._target][self._filled :]
        return self._view[self._end :]

    def feed(self, buffer: Any) -> None:
        """Takes in bytes that are at hand already, and what they complete."""
        rest = memoryview(buffer)
        while len(rest):
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            self.counts.append(count)
            self.absorb()
            rest = rest[count:]

    def absorb(self) -> None:
        """Takes note of the bytes counted in `counts`; appends to `messages` what is complete.

        Raises `RemoteProtocolError` when the bytes are no frames; the stream is then lost.
        """
        self.is_torn = True
        counts = self.counts
        if self._frame is None:
            while counts:
                self._end += counts[0]
                del counts[0]
        else:
            while counts:
                self._filled += counts[0]
                del counts[0]
        while self._take_inline() if self._frame is None else self._take_bulk():
            pass
        self.is_torn = False

    def _take_inline(self) -> bool:
        """Takes one frame's inline part from the buffer; False when it is not complete."""
        start = self._start
        if self._end - start < HEADER_BYTES:
            self._make_room(HEADER_BYTES)
            return False
        inline_length, kind, flags, number, small, bulk_length = _read_header(self._view, start)
        limits = self._limits
        if flags or bulk_length or inline_length > limits.inline_bytes:
            self._check_lengths(inline_length, flags, bulk_length)
        end = start + HEADER_BYTES + inline_length
        if end > self._end:
            self._make_room(end - start)
            return False
        if small > inline_length:
            raise RemoteProtocolError("a frame's small tensors are longer than the frame")
        inline = self._view[start + HEADER_BYTES : end]
        if self._is_strict:
            check_marshal(inline[: inline_length - small], limits.nesting)
        layout = self._layouts.get(kind) or self._layout(kind)
        loaded = layout.load(inline)
        address = self._address + end - small if small else 0
        message = None if bulk_length else layout.read(loaded, address, small, limits.items)
        lease: SegmentLease | None = None
        if message is None:
            segment = number if flags else None
            receiver, lease = self._receiver(address, small, bulk_length, segment)
            frame = IncomingFrame(
                layout, loaded, limits.items, receiver, is_authenticated=self.is_authenticated
            )
            if frame.targets:
                self._target = self._filled = 0
                self._frame, self._start, self.is_open = frame, end, False
                return True
            message = frame.message()
        append = self.messages.append
        is_last = end == self._end and len(self._view) == self._capacity
        if lease is not None:
            lease.end = lease.give_back  # before it, an interrupted reader begins again
        if is_last:
            self._start = self._end = 0
        else:
            self._start = end
        self.is_open = False
        append(message)
        return not is_last

    def _layout(self, kind: int) -> Layout:
        if kind not in KINDS:
            raise RemoteProtocolError(f"unknown kind of message: {kind}")
        layout = self._layouts[kind] = self._layout_of(KINDS[kind])
        return layout

    def _check_lengths(self, inline_length: int, flags: int, bulk_length: int) -> None:
        limits = self._limits
        if (
            flags > IN_SEGMENT
            or inline_length > limits.inline_bytes
            or bulk_length > limits.bulk_bytes
        ):
            raise RemoteProtocolError(
                f"a frame announces {inline_length + bulk_length:,} bytes, more than is allowed, "
                "or flags that are unknown here"
            )

    def _receiver(
        self, address: int, small: int, bulk_length: int, segment: int | None
    ) -> tuple[TensorReceiver, SegmentLease | None]:
        """`segment`: where the bulk lies, if it does not come in the stream."""
        if segment is None:
            return TensorReceiver(address, small, bulk_length, self._allocate), None
        if self._open_window is None:
            raise RemoteProtocolError(
                f"a frame names a segment, {segment}, where there can be none"
            )
        buffer, lease = self._open_window(segment)
        if bulk_length > len(buffer):
            raise RemoteProtocolError(f"segment {segment} has no room for {bulk_length:,} bytes")
        return WindowTensorReceiver(address, small, bulk_length, buffer), lease

    def _take_bulk(self) -> bool:
        """Moves what the buffer holds of the bulk; the rest is received in place. False when there
        is nothing to be done before more bytes have come."""
        frame = self._frame
        assert frame is not None
        target = frame.targets[self._target]
        if self._filled < len(target):
            count = min(len(target) - self._filled, self._end - self._start)
            target[self._filled : self._filled + count] = self._view[
                self._start : self._start + count
            ]
            self._filled += count
            self._start += count
            return count > 0
        if self._target + 1 < len(frame.targets):
            self._target += 1
            self._filled = 0
        else:
            message = frame.message()
            self._frame = None
            self.messages.append(message)
        return True

    def _make_room(self, whole: int) -> None:
        """Sees to it that a frame of `whole` bytes that begins at `start` will fit the buffer."""
        start, view = self._start, self._view
        count = self._end - start
        wanted = max(self._capacity, whole)
        is_empty_and_too_large = not count and len(view) > wanted
        if is_empty_and_too_large or start + whole > len(view) or self._end == len(view):
            if len(view) == wanted:
                rest = bytes(view[start : self._end])
                view[:count] = rest
            else:
                buffer, larger = _allocate(wanted)
                larger[:count] = view[start : self._end]
                self._buffer, self._view, self._address = buffer, larger, buffer.data_ptr()
            self._start = 0
            self._end = count
        elif not count:
            self._start = self._end = 0


@in_plain_modes
def _allocate(capacity: int) -> tuple[torch.Tensor, memoryview]:
    # A tensor's memory, because it is aligned and its address known.
    buffer = torch.empty(capacity, dtype=torch.uint8, device="cpu")
    return buffer, memoryview(buffer.numpy())  # type: ignore[arg-type]
