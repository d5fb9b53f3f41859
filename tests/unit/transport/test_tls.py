"""Streams inside TLS: they behave as streams do, and strangers get nowhere."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cryptography")

from lockstitch.errors import HandshakeError
from lockstitch.transport.base import SendTimeoutError
from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.tls import TlsTransport
from lockstitch.trust import Secret
from lockstitch.trust.tls import contexts_of_job
from tests.unit.transport.streams import receive_all, receive_some, wait_for_connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.transport.stream import StreamConnection

SECRET = Secret(bytes(range(32)))
BIG = 3 << 20  # more than a socket takes at once


@pytest.fixture(scope="module")
def contexts() -> Any:
    return contexts_of_job(SECRET)


class Aside:
    """Something that takes two."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._outcome: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(function, arguments))
        self._thread.start()

    def _run(self, function: Any, arguments: Any) -> None:
        try:
            self._outcome.append(function(*arguments))
        except Exception as error:  # noqa: BLE001 - returned to the test
            self._outcome.append(error)

    def result(self) -> Any:
        self._thread.join(60)
        return self._outcome[0]


@pytest.fixture
def pair(contexts: Any) -> Iterator[tuple[StreamConnection, StreamConnection]]:
    transport = TlsTransport(contexts)
    listener = transport.listen()
    connecting = Aside(transport.connect, listener.address, 60.0)
    far = wait_for_connection(listener)
    received = Aside(receive_all, far, 5)
    near = connecting.result()
    near.send([b"hello"])
    assert received.result() == b"hello"
    yield near, far
    for end in (near, far, listener):
        end.close()


def test_what_one_sends_the_other_receives(pair: Any) -> None:
    near, far = pair
    assert not near.is_exposed
    far.send([b"and", bytearray(b" "), memoryview(b"back")])
    assert receive_all(near, 8) == b"and back"


def test_much_goes_both_ways_at_once(pair: Any) -> None:
    near, far = pair
    forth, back = bytes(range(256)) * (BIG // 256), bytes(reversed(range(256))) * (BIG // 256)
    doubles = memoryview(bytearray(forth)).cast("d")
    sending = [Aside(near.send, [b"x", doubles]), Aside(far.send, [back])]
    receiving = Aside(receive_all, far, BIG + 1)
    assert receive_all(near, BIG) == back
    assert receiving.result() == b"x" + forth
    assert [each.result() for each in sending] == [None, None]


def test_poller_tells_of_what_has_left_the_socket_already(pair: Any) -> None:
    near, far = pair
    poller = TcpTransport().poller()
    poller.add(far)
    near.send([b"abcdef"])
    assert receive_some(far, 2) == b"ab"  # the rest of the record is opened already
    for expected in (b"cd", b"ef"):
        poller.arm(far)
        assert list(poller.wait(60)) == [far]
        assert receive_some(far, 2, 0) == expected
    poller.arm(far)
    assert list(poller.wait(60)) == [far]  # it may hold more: whoever looks finds nothing
    with pytest.raises(BlockingIOError):
        receive_some(far, 2, 0)
    poller.arm(far)
    assert list(poller.wait(0)) == []
    near.send([b"g"])
    assert list(poller.wait(60)) == [far]
    poller.remove(far)
    poller.close()


def test_a_sender_without_time_leaves_the_rest_to_the_next(pair: Any) -> None:
    near, far = pair
    message = bytearray(range(256)) * (2 * BIG // 256)
    whole = b"header" + message
    with pytest.raises(SendTimeoutError) as raised:
        near.send([b"header", message], remaining_time=lambda: 0.0)
    assert raised.value.is_begun
    message[:] = bytes(2 * BIG)  # the rest is a copy
    with pytest.raises(SendTimeoutError) as raised:
        near.send([b"never"], remaining_time=lambda: 0.0)
    assert not raised.value.is_begun
    sending = Aside(near.send, [b"next"])
    assert receive_all(far, len(whole) + 4) == whole + b"next"
    assert sending.result() is None


def test_end_of_the_stream_is_seen(pair: Any) -> None:
    near, far = pair
    near.send([b"last"])
    near.close()
    assert receive_all(far, 10) == b"last"
    assert receive_some(far) == b""


def test_nothing_in_the_clear_is_on_the_way(contexts: Any) -> None:
    """Between the two ends stands somebody who copies all bytes."""
    transport, seen = TlsTransport(contexts), bytearray()
    listener = transport.listen()
    middle = socket.create_server(("127.0.0.1", 0))

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            seen.extend(data)
            target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def carry() -> None:
        host, _, port = listener.address.removeprefix("tls:").rpartition(":")
        with middle.accept()[0] as one, socket.create_connection((host, int(port))) as other:
            back = Aside(pass_on, other, one)
            pass_on(one, other)
            back.result()

    carrying = Aside(carry)
    connecting = Aside(transport.connect, f"tls:127.0.0.1:{middle.getsockname()[1]}", 60.0)
    far = wait_for_connection(listener)
    received = Aside(receive_all, far, 60)
    near = connecting.result()
    near.send([b"nobody shall know" * 10])
    assert received.result() == (b"nobody shall know" * 10)[:60]
    for end in (near, far, listener):
        end.close()
    carrying.result()
    middle.close()
    assert len(seen) > 500
    assert b"nobody" not in seen


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b""])
def test_who_does_not_speak_tls_is_turned_away(contexts: Any, words: bytes) -> None:
    transport = TlsTransport(contexts)
    listener = transport.listen()
    stranger = TcpTransport().connect(listener.address.replace("tls:", "tcp:"), 60.0)
    far = wait_for_connection(listener)
    if words:
        stranger.send([words])
    else:
        stranger.close()
    with pytest.raises(HandshakeError, match="does not speak TLS"):
        receive_some(far, timeout_seconds=60)
    for end in (stranger, far, listener):
        end.close()


def test_who_has_a_certificate_of_another_job_is_turned_away(contexts: Any) -> None:
    transport, other = TlsTransport(contexts), TlsTransport(contexts_of_job(Secret.make()))
    for calling, listening in ((transport, other), (other, transport)):
        listener = listening.listen()
        connecting = Aside(calling.connect, listener.address, 60.0)
        far = wait_for_connection(listener)
        with pytest.raises((HandshakeError, ConnectionError)):
            receive_some(far, timeout_seconds=60)
        far.close()
        assert isinstance(connecting.result(), ConnectionError)
        listener.close()


def test_listener_that_never_answers_is_given_up(contexts: Any) -> None:
    silent = TcpTransport().listen()
    with pytest.raises(TimeoutError, match="did not speak TLS"):
        TlsTransport(contexts).connect(silent.address.replace("tcp:", "tls:"), 0.05)
    silent.close()
