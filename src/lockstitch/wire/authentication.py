"""Frames with MACs, for connections that others might reach into: TCP without TLS.

    ┌ u8 number of MACs ┬ MAC, 16 bytes ┬ (another) ┬ frame: header, inline ┬ bulk ┐

A MAC (message authentication code, `link.authentication`) covers the place of the frame in the
stream, its header and all that lies in the frame: the fields, the pickle stream, small tensors.
Whatever is changed, left out, said again or in another order ends the connection before it is
parsed. A frame of more than `ONE_MAC_BYTES` is preceded by a MAC of its header, so that nobody
waits for a length that a stranger has written.

A pickle stream that travels in bulk is covered by a digest in the frame. **The bulk of large
tensors is not covered**: hashing it would halve what a fast network carries, and TLS costs less.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, Final

from lockstitch.errors import RemoteProtocolError
from lockstitch.link.authentication import MAC_BYTES, mac_of
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.frames import HEADER, IN_SEGMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE_MAC_BYTES: Final = 64 * 1024
_HEADER_BYTES: Final = HEADER.size


class FrameAuthenticator:
    """Puts MACs before the frames that leave on one connection. It is called with the place of each
    frame in the stream, in bytes, and with the frame's buffers."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, place: int, buffers: Sequence[Any]) -> list[Any]:
        """Returns the buffers to be sent instead."""
        frame = buffers[0]
        if len(frame) <= ONE_MAC_BYTES:
            first = b"\x01" + mac_of(self._key, 2 * place, frame) + frame
        else:
            header_mac = mac_of(self._key, 2 * place, frame[:_HEADER_BYTES])
            first = b"\x02" + header_mac + mac_of(self._key, 2 * place + 1, frame) + frame
        return [first, *buffers[1:]]


class AuthenticatedFrameDecoder(FrameDecoder):
    """A `FrameDecoder` that parses nothing but what the peer has authenticated with `key`."""

    def __init__(self, key: bytes, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, is_authenticated=True)
        self._key = key
        self._place = 0

    def _take_inline(self) -> bool:
        return super()._take_inline() if self.is_open or self._open_next() else False

    def _open_next(self) -> bool:
        """Checks the MACs of the next frame, once it is there, and steps over them."""
        start, view = self._start, self._view
        available = self._end - start
        if available < 1:
            self._make_room(1 + MAC_BYTES + _HEADER_BYTES)
            return False
        count = view[start]
        if count not in (1, 2):
            raise _broken()
        first = start + 1 + count * MAC_BYTES
        known = first + _HEADER_BYTES
        if available < known - start:
            self._make_room(known - start)
            return False
        inline_length, _, flags, _, _, bulk_length = HEADER.unpack_from(view, first)
        length = _HEADER_BYTES + inline_length
        if (length > ONE_MAC_BYTES) != (count == 2):
            raise _broken()
        place = 2 * self._place
        if count == 2:
            self._check(view[start + 1 : start + 1 + MAC_BYTES], place, view[first:known])
            place += 1
            self._check_lengths(inline_length, flags, bulk_length)
        end = first + length
        if available < end - start:
            self._make_room(end - start)
            return False
        self._check(view[first - MAC_BYTES : first], place, view[first:end])
        following = self._place + end - start
        if flags != IN_SEGMENT:
            following += bulk_length
        # Without a call in between, so that no interrupt can separate them.
        self._place = following
        self._start = first
        self.is_open = True
        return True

    def _check(self, claimed: memoryview, place: int, data: memoryview) -> None:
        if not hmac.compare_digest(claimed, mac_of(self._key, place, data)):
            raise _broken()


def _broken() -> RemoteProtocolError:
    return RemoteProtocolError(
        "a frame's seal is broken: somebody on the way has changed, repeated or left out what the "
        "peer sent, or the two ends have lost step"
    )
