"""A seal fits one key, one place and one content."""

from __future__ import annotations

import pytest

from lockstitch.link.authentication import MAC_BYTES, mac_of

KEY, OTHER = bytes(32), bytes(31) + b"\1"


@pytest.mark.parametrize("data", [b"content", bytearray(b"content"), memoryview(b"content")])
def test_seal_is_the_same_for_the_same_bytes(data: bytes) -> None:
    assert mac_of(KEY, 3, data) == mac_of(KEY, 3, b"content")
    assert len(mac_of(KEY, 3, data)) == MAC_BYTES


@pytest.mark.parametrize(
    ("key", "place", "data"), [(OTHER, 3, b"content"), (KEY, 4, b"content"), (KEY, 3, b"contents")]
)
def test_seal_of_anything_else_is_another(key: bytes, place: int, data: bytes) -> None:
    assert mac_of(key, place, data) != mac_of(KEY, 3, b"content")
