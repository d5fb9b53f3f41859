from __future__ import annotations

import pytest

from lockstitch.board.messages import Hello, Over, Place, Ready, Update, Void, decode, encode
from lockstitch.errors import RemoteProtocolError


@pytest.mark.parametrize(
    "message",
    [
        Hello(3),
        Ready(),
        Place(2, 0, 4, "file:///world"),
        Update(5, 2),
        Void(2),
        Over("that is all"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_message_survives_the_way(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"message": "Goodbye"}', b'{"message": "Hello"}', b"\xff"]
)
def test_anything_else_is_refused(content):
    with pytest.raises(RemoteProtocolError, match="not a message"):
        decode(content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"message": "Hello", "worker": [3]}',
        b'{"message": "Hello", "worker": true}',
        b'{"message": "Update", "number": 1, "kind": null}',
        b'{"message": "Over", "reason": 3}',
    ],
)
def test_fields_of_other_types_are_refused(content):
    with pytest.raises(RemoteProtocolError, match=r"is no (int|str)"):
        decode(content)


def test_deep_nesting_is_refused():
    with pytest.raises(RemoteProtocolError, match="not a message"):
        decode(b"[" * 100_000)
