from __future__ import annotations

import pytest

from lockstitch.errors import RemoteProtocolError
from lockstitch.launcher_link.messages import CODEC, Over, RankAssignment, Ready, Update, Void


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        RankAssignment(2, 0, 4, "file:///world"),
        Update(5, 2),
        Void(2),
        Over("that is all"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_message_survives_the_way(message):
    assert CODEC.decode(CODEC.encode(message)) == message


@pytest.mark.parametrize("content", [b"{}", b'["Goodbye"]', b'["Ready"]', b'["Ready", true]'])
def test_anything_else_is_refused(content):
    with pytest.raises(RemoteProtocolError, match="not a message of the board"):
        CODEC.decode(content)
