"""The MAC of what is sent after a handshake: a keyed hash of its bytes and of its place.

Each direction of a connection has a key of its own, fresh for each connection, and places only grow
(a number, or an offset in the stream). So whatever is changed, left out, said again, in another
order, or back to where it came from, has no MAC that fits. A MAC hides nothing. No I/O here.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

MAC_BYTES: Final = 16


def mac_of(key: bytes, place: int, data: bytes | bytearray | memoryview) -> bytes:
    """Returns the MAC of those bytes at that place."""
    # The salt is part of what is hashed, and cheaper than putting the place before the data.
    salt = place.to_bytes(16, "big")
    return blake2b(data, digest_size=MAC_BYTES, key=key, salt=salt).digest()
