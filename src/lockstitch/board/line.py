"""One connection between a launcher and a worker: whole messages, each with a proof.

The launcher begins with a challenge, 16 random bytes. Every message carries an HMAC-SHA256 of the
challenge, who speaks, how many messages they have sent, and the content; its key is derived from
the job's secret.
So nobody without the secret is heard, and nothing can be repeated, left out or turned round. What
is said is no secret: nothing is encrypted.

    4 bytes    length of the content
    32 bytes   proof
    n bytes    content
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import TYPE_CHECKING

from lockstitch.board import messages
from lockstitch.errors import RemoteProtocolError

if TYPE_CHECKING:
    from lockstitch.board.messages import Message

CHALLENGE_SIZE = 16
_HEAD = struct.Struct("<I32s")
_COUNT = struct.Struct("<cQ")
_LONGEST = 1 << 16


class Line:
    """The messages of one connection as bytes. No I/O here."""

    def __init__(self, secret: bytes, challenge: bytes, *, is_launcher: bool) -> None:
        self._secret = secret
        self._challenge = challenge
        self._sides = (b"L", b"W") if is_launcher else (b"W", b"L")
        self._sent = self._received = 0
        self._rest = bytearray()

    def send(self, message: Message) -> bytes:
        """What to write for the message."""
        content = messages.encode(message)
        proof = self._proof(self._sides[0], self._sent, content)
        self._sent += 1
        return _HEAD.pack(len(content), proof) + content

    def receive(self, data: bytes) -> list[Message]:
        """The messages that what was read completes. `RemoteProtocolError` when it was not said by
        one who knows the secret; the connection is then to be closed."""
        self._rest += data
        heard = []
        while len(self._rest) >= _HEAD.size:
            length, proof = _HEAD.unpack_from(self._rest)
            if length > _LONGEST:
                raise RemoteProtocolError("a stranger's message: it is too long")
            end = _HEAD.size + length
            if len(self._rest) < end:
                break
            content = bytes(self._rest[_HEAD.size : end])
            del self._rest[:end]
            expected = self._proof(self._sides[1], self._received, content)
            if not hmac.compare_digest(proof, expected):
                raise RemoteProtocolError("a message without the job's proof")
            self._received += 1
            heard.append(messages.decode(content))
        return heard

    def _proof(self, side: bytes, count: int, content: bytes) -> bytes:
        covered = self._challenge + _COUNT.pack(side, count) + content
        return hmac.digest(self._secret, covered, hashlib.sha256)
