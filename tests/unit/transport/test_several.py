"""Several transports as one, over real sockets of two kinds and none that is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.transport.several import SeveralTransports
from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.unix import UnixTransport

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def both() -> Iterator[SeveralTransports]:
    transports = SeveralTransports({"unix": UnixTransport(), "tcp": TcpTransport()})
    yield transports
    transports.close()


def test_it_listens_on_each_kind_the_best_first(both: SeveralTransports) -> None:
    listeners = both.listen_on_each()
    try:
        assert [each.address.partition(":")[0] for each in listeners] == ["unix", "tcp"]
    finally:
        for listener in listeners:
            listener.close()


def test_it_connects_by_the_scheme_of_the_address(both: SeveralTransports) -> None:
    listeners = both.listen_on_each()
    try:
        for listener in listeners:
            connection = both.connect(listener.address, 5)
            assert connection.peer == listener.address
            connection.close()
    finally:
        for listener in listeners:
            listener.close()


def test_a_scheme_that_it_does_not_speak_is_named() -> None:
    only_unix = SeveralTransports({"unix": UnixTransport()})
    try:
        with pytest.raises(ConnectionError, match="does not speak 'tcp'"):
            only_unix.connect("tcp:127.0.0.1:1", 1)
    finally:
        only_unix.close()
