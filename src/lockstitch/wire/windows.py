"""Tensors arriving in memory that the sender has filled: they are made where they lie.

The large memories of the message lie one behind the other, each aligned (`memory.sizes`). A
tensor's storage is its part of the window and keeps the window open; nothing is copied. Such a
storage cannot be resized in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.errors import RemoteProtocolError
from lockstitch.memory.sizes import aligned
from lockstitch.wire.tensor_receiver import TensorReceiver, view_of
from lockstitch.wire.tensors import INLINE_BYTES

if TYPE_CHECKING:
    import torch


class WindowTensorReceiver(TensorReceiver):
    """A `TensorReceiver` whose `bulk_length` bytes of bulk are in `window`, a writable buffer."""

    __slots__ = ("_offset", "_window", "shared_memory")

    def __init__(self, address: int, small_length: int, bulk_length: int, window: Any) -> None:
        super().__init__(address, small_length, bulk_length)
        self._window = window
        self.shared_memory = getattr(window, "lease", None)
        self._offset = 0

    def add_stream(self, length: int) -> memoryview:
        """A large pickle stream, read in place."""
        self._announce(length)
        if length <= INLINE_BYTES:
            raise RemoteProtocolError("a stream is announced as large that is not")
        offset = self._advance(length)
        return memoryview(self._window).cast("B")[offset : offset + length]

    def _announce(self, size: int) -> None:
        super()._announce(aligned(size) if size > INLINE_BYTES else size)

    def _advance(self, size: int) -> int:
        offset = self._offset
        self._offset += aligned(size)
        return offset

    def _large(self, index: int, shape: tuple[int, ...], size: int) -> torch.Tensor:
        return view_of(self._window, index, shape, self._advance(size))
