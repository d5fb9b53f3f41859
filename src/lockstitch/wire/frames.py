"""What a frame is: a message as bytes, made by `wire.encoding` and read by `wire.decoding`.

    ┌ header, 20 bytes ┬ fields (marshal) ┬ small tensors ┬ bulk: large stream, large tensors ┐
    │ u32 inline length│                  │               │                                   │
    │ u8 kind, u8 flag │                  │ ◄─ small ───► │                                   │
    │ u16, u32 small   │ ◄─ inline length bytes ────────► │ ◄─ bulk length bytes ───────────► │
    │ u64 bulk length  │                                  │                                   │

How fields are written: `wire.layouts`. Items of at most `INLINE_BYTES` travel inside the frame, the
others behind it, straight from and into their own memory. Or, with flag `IN_SEGMENT`, they lie in
memory that both sides share, each aligned, in the segment that the u16 names: then nothing follows
the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockstitch.memory.leases import Loan, SegmentLease

HEADER: Final = struct.Struct("<IBBHIQ")
HEADER_BYTES: Final = HEADER.size
IN_SEGMENT: Final = 1
DIGEST_BYTES: Final = 32

Lend = Callable[..., "Loan | None"]
"""As `lend(nbytes)` it asks for so many bytes of memory that the receiver will see; None: the
stream will do. As `lend(nbytes, filled)` it asks that the receiver see the `HostCopy` that `filled`
returns."""

Window = Callable[[int], "tuple[Any, SegmentLease]"]
"""The memory of that number as a writable buffer, and the lease that ends with it."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a frame may hold; what exceeds it is refused before memory is allocated for it."""

    inline_bytes: int = 256 << 20
    bulk_bytes: int = 1 << 40
    items: int = 1 << 20
    nesting: int = 64
    """How deep values may lie in each other, where that is looked at (`is_strict`)."""


DEFAULT_LIMITS: Final = FrameLimits()


def digest_of(stream: bytes | memoryview) -> bytes:
    """Returns the digest that an authenticated frame has of a stream that travels outside of it."""
    return blake2b(stream, digest_size=DIGEST_BYTES).digest()
