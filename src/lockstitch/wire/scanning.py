"""Looking through what `marshal` shall read, before it does.

`marshal` believes what it reads: five bytes can ask it for a tuple of two thousand million entries,
a few more for code, or for a value that contains itself. So where a frame may come from somebody
who is not trusted with code anyway, its fields are walked over first: only types that our messages
are made of, no container with more entries than there are bytes, none too deep, and nothing that
would be many times larger than its bytes once its repetitions are counted out.
"""

from __future__ import annotations

import struct
from typing import Final

from lockstitch.errors import RemoteProtocolError

_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_IS_SHARED: Final = 0x80

# How many bytes follow, by type.
_FIXED: Final = {
    ord(kind): size for kind, size in zip("NTF.igy", (0, 0, 0, 0, 4, 8, 16), strict=True)
}
_LONG_STRINGS: Final = frozenset(b"stuaA")
_SHORT_STRINGS: Final = frozenset(b"zZ")
_LONG_TUPLES: Final = frozenset(b"([")
_SHORT_TUPLE: Final = ord(")")
_INTEGER: Final = ord("l")
_AGAIN: Final = ord("r")
_MOST_REPETITION: Final = 16
_ALWAYS_FINE: Final = 1024


def check_marshal(data: bytes | memoryview, most_nesting: int) -> None:
    """Raises `RemoteProtocolError` unless `data` is one value that `marshal` can read safely."""
    try:
        end = _Walk(data, most_nesting).end()
    except (IndexError, struct.error) as error:
        raise RemoteProtocolError("a frame's fields end in the middle") from error
    if end != len(data):
        raise RemoteProtocolError("a frame's fields are shorter or longer than the frame says")


class _Walk:
    def __init__(self, data: bytes | memoryview, most_nesting: int) -> None:
        self._data = data
        self._most_nesting = most_nesting
        self._at = 0
        self._size = 0
        """Of all so far, repetitions counted out."""
        self._claimed = 0
        """So many entries all containers have announced; each takes a byte at least."""
        self._shared: list[int] = []
        """How large each value is that may be named again; 0 while it is open."""

    def end(self) -> int:
        """Returns where the first value ends, in bytes."""
        data, shared = self._data, self._shared
        most = _ALWAYS_FINE + _MOST_REPETITION * len(data)
        # For each open container: entries to come, its place in `shared`, size where it began.
        containers: list[tuple[int, int, int]] = []
        remaining = 1
        while remaining or containers:
            if not remaining:
                remaining, place, before = containers.pop()
                if place >= 0:
                    shared[place] = self._size - before + 1
                continue
            remaining -= 1
            kind = data[self._at]
            place = -1
            if kind & _IS_SHARED:
                place = len(shared)
                shared.append(0)
            self._at += 1
            self._size += 1
            entries = self._step(kind & ~_IS_SHARED)
            self._claimed += entries
            if self._claimed > len(data) or self._at > len(data) or self._size > most:
                raise RemoteProtocolError("a frame's fields are larger than the frame")
            if entries:
                containers.append((remaining, place, self._size))
                remaining = entries
                if len(containers) > self._most_nesting:
                    raise RemoteProtocolError(
                        f"values are nested deeper than the limit of {self._most_nesting}"
                    )
            elif place >= 0:
                shared[place] = 1
        return self._at

    def _step(self, kind: int) -> int:
        """Steps over what belongs to a value of that type; returns how many entries follow."""
        data, at = self._data, self._at
        if kind in _FIXED:
            self._at += _FIXED[kind]
        elif kind == _SHORT_TUPLE:
            self._at += 1
            return data[at]
        elif kind in _LONG_TUPLES:
            self._at += 4
            return int(_U32.unpack_from(data, at)[0])
        elif kind in _SHORT_STRINGS:
            self._at += 1 + data[at]
        elif kind in _LONG_STRINGS:
            self._at += 4 + int(_U32.unpack_from(data, at)[0])
        elif kind == _INTEGER:
            self._at += 4 + 2 * abs(int(_I32.unpack_from(data, at)[0]))
        elif kind == _AGAIN:
            self._at += 4
            again = int(_U32.unpack_from(data, at)[0])
            if again >= len(self._shared) or not self._shared[again]:
                raise RemoteProtocolError("a frame's fields name what has not been there")
            self._size += self._shared[again]
        else:
            raise RemoteProtocolError(f"a frame holds a value of type {chr(kind)!r}")
        return 0
