"""Addresses of TCP listeners, and what is set on their connections."""

from __future__ import annotations

import errno
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from lockstitch.transport.base import SendTimeoutError
from lockstitch.transport.tcp import TcpTransport
from tests.unit.transport.streams import connected, receive_all, wait_for_connection

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_loopback_is_the_default():
    listener = TcpTransport().listen()
    assert listener.address.startswith("tcp:127.0.0.1:")
    listener.close()


def test_the_given_host_is_in_the_address():
    listener = TcpTransport("localhost").listen()
    assert listener.address.startswith("tcp:localhost:")
    listener.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6_hosts_stand_in_brackets():
    transport = TcpTransport("::1")
    try:
        listener = transport.listen()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    assert listener.address.startswith("tcp:[::1]:")
    near = transport.connect(listener.address, 1.0)
    far = wait_for_connection(listener)
    near.send([b"six"])
    assert receive_all(far, 3) == b"six"
    for end in (near, far, listener):
        end.close()


def test_a_given_port_is_listened_at():
    transport = TcpTransport()
    first = transport.listen()
    with pytest.raises(OSError, match="in use"):
        transport.listen(first.address)
    first.close()


def test_small_messages_are_not_held_back():
    with connected(TcpTransport()) as ends:
        for end in ends:
            assert end._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_unknown_host_is_a_connection_error():
    with pytest.raises(ConnectionError, match="cannot connect to tcp:no.such.host.invalid"):
        TcpTransport().connect("tcp:no.such.host.invalid:1", 1.0)


def test_a_host_that_does_not_answer_times_out(monkeypatch):
    def never(address, timeout):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", never)
    with pytest.raises(TimeoutError, match="did not answer in 0.5 s"):
        TcpTransport().connect("tcp:127.0.0.1:1", 0.5)


def test_where_no_network_leads_it_says_what_to_look_at(monkeypatch):
    def unreachable(address, timeout):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(ConnectionError, match=r"is unreachable; see whether .* LOCKSTITCH_IFNAME"):
        TcpTransport().connect("tcp:127.0.0.1:1", 0.5)


def test_a_connection_to_itself_is_a_refusal(monkeypatch):
    lonely = socket.socket()
    lonely.bind(("127.0.0.1", 0))
    lonely.connect(lonely.getsockname())  # TCP's simultaneous open
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: lonely)
    with pytest.raises(ConnectionRefusedError):
        TcpTransport().connect("tcp:127.0.0.1:1", 0.5)


@pytest.mark.parametrize("address", ["unix:/x", "tcp:host", "tcp::1", "tcp:host:port", ""])
def test_other_addresses_are_refused(address):
    with pytest.raises(ValueError, match="not a TCP address"):
        TcpTransport().connect(address, 1.0)


def test_seal_is_told_the_place_of_each_message_in_the_stream() -> None:
    """Also after an interrupt that came before anything had left."""
    places = []

    def seal(place: int, buffers: Sequence[bytes]) -> list[bytes]:
        places.append(place)
        if len(places) == 2:
            raise KeyboardInterrupt
        return [b"!", *buffers]

    with connected(TcpTransport()) as (near, far):
        assert near.is_exposed
        near.seal(seal)
        near.send([b"abc", b"d"])
        with pytest.raises(KeyboardInterrupt):
            near.send([b"lost"])
        near.send([b"e"])
        near.send([b"fg"])
        assert receive_all(far, 10) == b"!abcd!e!fg"
    assert places == [0, 5, 5, 7]


def test_seal_is_told_the_place_behind_a_rest_that_is_still_to_leave() -> None:
    places = []

    def seal(place: int, buffers: Sequence[bytes]) -> list[bytes]:
        places.append(place)
        return [b"!", *buffers]

    with connected(TcpTransport()) as (near, far):
        near.seal(seal)
        message = bytes(8 << 20)  # more than a socket takes at once
        with pytest.raises(SendTimeoutError):
            near.send([message], remaining_time=lambda: 0.0)
        with pytest.raises(SendTimeoutError):
            near.send([b"never"], remaining_time=lambda: 0.0)
        sender = threading.Thread(target=lambda: [near.send([]), near.send([b"next"])])
        sender.start()
        end = len(message) + 1
        assert receive_all(far, end + 5) == b"!" + message + b"!next"
        sender.join()
    assert places == [0, end, end]


def test_connection_that_ends_at_once_is_a_connection_error_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_arguments: socket.socket())
    with pytest.raises(
        ConnectionError, match="cannot connect to tcp:127.0.0.1:9: .* not connected"
    ):
        TcpTransport().connect("tcp:127.0.0.1:9", 1.0)
