"""What unix and TCP connections have in common; each test runs over both."""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.transport.base import SendTimeoutError
from lockstitch.transport.stream import StreamConnection, StreamListener, set_timeout
from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.streams import (
    connected,
    receive_all,
    receive_some,
    socket_pair,
    wait_for_connection,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.transport.base import Transport

BIG = 8 << 20  # more than a socket takes at once


@pytest.fixture(params=[UnixTransport, TcpTransport], ids=["unix", "tcp"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    transport = request.param()
    yield transport
    transport.close()


@pytest.fixture
def pair(transport: Transport) -> Iterator[tuple[StreamConnection, StreamConnection]]:
    with connected(transport) as ends:
        yield ends


def test_as_much_is_sent_and_taken_in_as_there_is_room_for_without_waiting(pair):
    near, far = pair
    content = memoryview(bytes(range(256)) * (BIG // 256))
    sent = near.send_some([content[:3], content[3:]])
    assert 0 < sent < BIG
    near.send_some([content[sent:]])  # perhaps a little more, while the kernel moves it
    first, rest = bytearray(5), bytearray(BIG)
    count = far.receive_some([first, rest])
    assert (first + rest)[:count] == content[:count]
    while far.receive_some([rest]):
        pass  # until there is nothing, which is told by none


def test_poller_is_told_of_so_many_bytes_only_or_of_the_end():
    with connected(TcpTransport()) as (near, far):
        poll = select.poll()
        poll.register(far.watch(), select.POLLIN)
        far.await_bytes(1000)
        near.send([bytes(999)])
        assert poll.poll(0) == []
        near.send([bytes(1)])
        assert poll.poll(20_000)
        assert far.receive_some([bytearray(1 << 12)]) == 1000
        far.await_bytes(1000)
        near.close()
        assert poll.poll(20_000)
        with pytest.raises(ConnectionResetError, match="has closed the connection"):
            far.receive_some([bytearray(1)])
        far.unwatch()


def test_neither_sends_nor_takes_in_anything_once_it_is_closed(pair):
    near, _ = pair
    near.close()
    with pytest.raises(BrokenPipeError, match="is closed"):
        near.send_some([b"x"])
    with pytest.raises(BrokenPipeError, match="is closed"):
        near.receive_some([bytearray(1)])


def test_what_one_sends_the_other_receives(pair):
    near, far = pair
    near.send([b"there"])
    assert receive_all(far, 5) == b"there"
    far.send([b"and back"])
    assert receive_all(near, 8) == b"and back"


def test_several_buffers_go_out_as_one_stream(pair):
    near, far = pair
    doubles = memoryview(bytearray(16)).cast("d")
    near.send([b"ab", bytearray(b"cd"), memoryview(b"ef"), b"", doubles])
    assert receive_all(far, 22) == b"abcdef" + bytes(16)


def test_more_buffers_than_one_system_call_takes(pair):
    near, far = pair
    many = [bytes([number % 256]) for number in range(3 * os.sysconf("SC_IOV_MAX") + 1)]
    near.send(many)
    assert receive_all(far, len(many)) == b"".join(many)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_large_message_waits_for_a_slow_reader(pair, pieces):
    near, far = pair
    message = os.urandom(BIG)
    half = memoryview(message)[: BIG // pieces]
    buffers = [half] if pieces == 1 else [half, memoryview(message)[BIG // 2 :]]
    sender = threading.Thread(target=near.send, args=(buffers,))
    sender.start()
    assert receive_all(far, BIG) == message
    sender.join()


def test_a_message_of_nothing_sends_nothing(pair):
    near, far = pair
    near.send([])
    near.send([b""])
    near.send([b"", b""])
    near.send([b"x"])
    assert receive_some(far) == b"x"


@given(
    message=st.binary(max_size=4000),
    cuts=st.lists(st.integers(0, 4000), max_size=8),
    reads=st.lists(st.integers(1, 1500), min_size=1, max_size=8),
)
def test_the_stream_is_the_same_however_it_is_split(message, cuts, reads):
    edges = [0, *sorted(min(cut, len(message)) for cut in cuts), len(message)]
    buffers = [message[start:end] for start, end in itertools.pairwise(edges)]
    with socket_pair() as (near, far):
        near.send(buffers)
        received = b""
        while len(received) < len(message):
            received += receive_some(far, reads[len(received) % len(reads)])
    assert received == message


def test_nothing_to_receive_raises_at_once_or_after_the_time(pair):
    _, far = pair
    with pytest.raises(BlockingIOError):
        receive_some(far, timeout_seconds=0)
    with pytest.raises(BlockingIOError):
        receive_some(far, timeout_seconds=0.001)


def test_a_timeout_does_not_outlive_its_call(pair):
    near, far = pair
    with pytest.raises(BlockingIOError):
        receive_some(far, timeout_seconds=0.001)
    received = []
    receiver = threading.Thread(target=lambda: received.append(receive_some(far)))
    receiver.start()
    receiver.join(0.05)  # several times the timeout
    assert receiver.is_alive()
    near.send([b"late"])
    receiver.join()
    assert received == [b"late"]


def test_a_default_timeout_of_the_program_does_not_matter(transport):
    socket.setdefaulttimeout(0.001)
    try:
        with connected(transport) as (near, far):
            received = []
            receiver = threading.Thread(target=lambda: received.append(receive_some(far)))
            receiver.start()
            receiver.join(0.05)
            near.send([b"late"])
            receiver.join()
    finally:
        socket.setdefaulttimeout(None)
    assert received == [b"late"]


def test_the_peers_end_is_the_end_of_the_stream(pair):
    near, far = pair
    near.send([b"last words"])
    near.close()
    assert receive_all(far, 10) == b"last words"
    assert receive_some(far) == b""


def test_sending_to_a_peer_that_is_gone_raises_connection_error(pair):
    near, far = pair
    far.close()

    def send_until_it_is_noticed():
        while True:
            near.send([bytes(1000)])

    with pytest.raises(ConnectionError):
        send_until_it_is_noticed()


def test_closing_wakes_a_blocked_receiver(pair):
    _, far = pair
    received = []
    receiver = threading.Thread(target=lambda: received.append(receive_some(far)))
    receiver.start()
    receiver.join(0.02)
    far.close()
    receiver.join()
    assert received == [b""]


def test_closing_wakes_a_blocked_sender(pair):
    near, _ = pair
    errors = []

    def send():
        try:
            near.send([bytes(BIG)])
        except ConnectionError as error:
            errors.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(0.02)
    assert sender.is_alive()
    near.close()
    sender.join()
    assert len(errors) == 1


def no_time() -> float:
    return 0.0


def test_a_sender_without_time_leaves_the_rest_to_the_next(pair):
    near, far = pair
    message = bytes(range(256)) * (BIG // 256)
    with pytest.raises(SendTimeoutError) as raised:
        near.send([b"header", message], remaining_time=no_time)
    assert raised.value.is_begun
    with pytest.raises(SendTimeoutError) as raised:  # the rest has not left yet
        near.send([b"never"], remaining_time=no_time)
    assert not raised.value.is_begun
    sender = threading.Thread(target=near.send, args=([b"next"],))
    sender.start()
    assert receive_all(far, 6 + BIG + 4) == b"header" + message + b"next"
    sender.join()


def test_the_rest_is_a_copy_and_leaves_with_nothing(pair):
    near, far = pair
    message = bytearray(BIG)
    with pytest.raises(SendTimeoutError):
        near.send([message], remaining_time=no_time)
    message[:] = b"x" * BIG
    sender = threading.Thread(target=near.send, args=([],))
    sender.start()
    assert receive_all(far, BIG) == bytes(BIG)
    sender.join()


def test_closing_ends_the_sender_of_a_rest(pair):
    near, _ = pair
    with pytest.raises(SendTimeoutError):
        near.send([bytes(BIG)], remaining_time=no_time)
    near.close()
    with pytest.raises(ConnectionError):
        near.send([])


def test_a_descriptor_stays_until_the_last_one_has_left():
    left, right = socket.socketpair()
    near = StreamConnection(left, "far")
    descriptor = near.watch()
    near.close()
    assert os.fstat(descriptor)
    near.unwatch()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    right.close()


def test_closing_twice_is_harmless_and_a_closed_connection_says_so(pair):
    near, _ = pair
    near.close()
    near.close()
    assert "closed" in repr(near)
    assert receive_some(near) == b""
    with pytest.raises(ConnectionError, match="is closed"):
        near.send([b"x"])


class InterruptedSocket:
    """Sends a few bytes, is interrupted, and works from then on."""

    def __init__(self, sock: socket.socket, interrupts: int = 1) -> None:
        self.sock = sock
        self.interrupts = interrupts
        self.calls = 0

    def send(self, buffer, flags):
        return self.sock.send(memoryview(buffer)[:3], flags)

    def sendmsg(self, buffers, ancillary, flags):
        self.calls += 1
        if self.calls <= self.interrupts:
            raise KeyboardInterrupt
        return self.sock.sendmsg(buffers, ancillary, flags)


def interrupted_connection(interrupts: int) -> tuple[StreamConnection, StreamConnection]:
    left, right = socket.socketpair()
    near, far = StreamConnection(left, "far"), StreamConnection(right, "near")
    interrupted = InterruptedSocket(left, interrupts)
    near._send, near._sendmsg = interrupted.send, interrupted.sendmsg
    return near, far


def test_an_interrupt_in_the_middle_is_raised_after_the_rest_went_out():
    near, far = interrupted_connection(interrupts=1)
    with pytest.raises(KeyboardInterrupt):
        near.send([b"one whole message"])
    assert receive_all(far, 17) == b"one whole message"
    assert not near.is_closed
    near.close()
    far.close()


def test_a_second_interrupt_closes_the_connection():
    near, far = interrupted_connection(interrupts=2)
    with pytest.raises(KeyboardInterrupt):
        near.send([b"one whole message"])
    assert near.is_closed
    assert receive_all(far, 3) == b"one"
    assert receive_some(far) == b""
    far.close()


def test_an_interrupt_before_anything_went_out_leaves_the_connection_open():
    near, far = interrupted_connection(interrupts=1)
    with pytest.raises(KeyboardInterrupt):
        near.send([b"two", b"buffers"])
    assert not near.is_closed
    near.send([b"next", b"one"])
    assert receive_all(far, 7) == b"nextone"
    near.close()
    far.close()


def test_a_listener_accepts_whoever_waits_and_never_blocks(transport):
    listener = transport.listen()
    assert listener.accept() is None
    dialled = [transport.connect(listener.address, 1.0) for _ in range(2)]
    accepted = [wait_for_connection(listener) for _ in range(2)]
    assert listener.accept() is None
    for end in (*dialled, *accepted, listener):
        end.close()
    assert listener.accept() is None


def test_a_listener_survives_a_caller_that_it_will_not_have():
    server = socket.create_server(("127.0.0.1", 0))
    verdicts = [PermissionError("a stranger"), None]

    def greet(sock: socket.socket) -> StreamConnection:
        verdict = verdicts.pop(0)
        if verdict is not None:
            raise verdict
        return StreamConnection(sock, "a friend")

    listener = StreamListener(server, "somewhere", greet)
    stranger = socket.create_connection(server.getsockname())
    friend = socket.create_connection(server.getsockname())
    accepted = wait_for_connection(listener)
    assert accepted.peer == "a friend"
    assert stranger.recv(1) == b""
    for end in (stranger, friend, accepted, listener):
        end.close()


def test_nobody_listens_where_a_listener_was(transport):
    listener = transport.listen()
    listener.close()
    with pytest.raises(ConnectionError, match="cannot connect to"):
        transport.connect(listener.address, 1.0)


@pytest.mark.parametrize("seconds", [1e-9, 0.5, 3.25, None])
def test_a_timeout_is_rounded_up_and_none_is_for_ever(seconds):
    left, right = socket.socketpair()
    set_timeout(left, socket.SO_SNDTIMEO, seconds)
    raw = left.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
    whole, micro = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")
    if seconds is None:
        assert (whole, micro) == (0, 0)
    else:
        assert 0 < whole + micro / 1e6 - seconds < 0.02 or whole + micro / 1e6 == seconds
    left.close()
    right.close()


def test_where_something_could_not_be_sent_the_receiver_sees_the_end(pair, monkeypatch):
    near, far = pair
    far.send([b"said before"])

    def fail(*_arguments):
        raise OSError(errno.ENOBUFS, "no buffer space")

    monkeypatch.setattr(near, "_send", fail)
    with pytest.raises(ConnectionError, match="no buffer space"):
        near.send([b"lost"])
    assert receive_some(far) == b""
    assert receive_all(near, 11) == b"said before"
