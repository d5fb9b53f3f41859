"""Who serves which kind of message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import WorkerId
from lockstitch.runtime.serving import Serving
from lockstitch.wire.messages import Alive, Heartbeat

SENDER = WorkerId(1, 0)


def test_a_message_on_the_way_back_is_handled_or_a_breach_of_protocol():
    serving = Serving(SimpleNamespace(), SimpleNamespace(discard=None), lambda _worker: False)
    heard = []
    serving.handlers[Alive] = lambda sender, message: heard.append((sender, message))
    serving.handle(SENDER, Alive(1))
    assert heard == [(SENDER, Alive(1))]
    with pytest.raises(RemoteProtocolError, match="a Heartbeat came where replies belong"):
        serving.handle(SENDER, Heartbeat(1))
