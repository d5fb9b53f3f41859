"""What one side writes the other reads, in order, whether it sleeps or is awake."""

from __future__ import annotations

import socket
import threading

import pytest

from lockstitch.memory.mailbox import LARGEST, Mailbox, create_memory, spin_seconds_for


class Sides:
    """Both sides in one process."""

    def __init__(self, spin_seconds):
        self.sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = create_memory()
        self.one, self.other = (
            Mailbox(memory, side, sock, spin_seconds) for side, sock in enumerate(self.sockets)
        )

    def close(self):
        for sock in self.sockets:
            sock.close()


@pytest.fixture(params=[0.0, 1e-3], ids=["sleeps", "looks"])
def sides(request):
    sides = Sides(request.param)
    yield sides
    sides.close()


def test_messages_of_any_size_arrive_in_order(sides):
    messages = [bytes([i % 256]) * size for i, size in enumerate([0, 1, 7, 8, 9, LARGEST] * 20)]
    for message in messages:
        assert sides.one.send(message)
        assert sides.other.has_message()
        assert sides.other.receive() == message
    assert not sides.other.has_message()


def test_several_wait_until_they_are_read(sides):
    for i in range(100):
        sides.other.send(b"%d" % i)
    assert [int(sides.one.receive()) for _ in range(100)] == list(range(100))


def test_a_reader_that_sleeps_is_woken(sides):
    received = []

    def echo():
        while message := sides.other.receive():
            received.append(message)
            sides.other.send(message)

    thread = threading.Thread(target=echo)
    thread.start()
    for i in range(200):
        sides.one.send(b"x%d" % i)
        assert sides.one.receive(kind=i % 3) == b"x%d" % i
    sides.one.send(b"")
    thread.join()
    assert len(received) == 200


def test_a_writer_waits_for_room(sides):
    count, size = 40, LARGEST // 2
    thread = threading.Thread(
        target=lambda: [sides.one.send(bytes([i]) * size) for i in range(count)]
    )
    thread.start()
    for i in range(count):
        assert sides.other.receive() == bytes([i]) * size
    thread.join()


def test_two_that_write_without_end_do_not_wait_for_each_other(sides):
    count, message = 30, b"m" * LARGEST
    read = []

    def other():
        for _ in range(count):
            sides.other.send(message)
        for _ in range(count):
            assert sides.other.receive() == message

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(count):
        sides.one.send(message, lambda: read.append(sides.one.receive()))
    while len(read) < count:
        read.append(sides.one.receive())
    thread.join()
    assert set(read) == {message}


def test_what_the_dead_have_written_is_still_read(sides):
    sides.other.send(b"last words")
    sides.sockets[1].close()
    assert sides.one.receive() == b"last words"
    assert sides.one.receive() is None


def test_who_sleeps_hears_of_a_death(sides):
    threading.Thread(target=sides.sockets[1].shutdown, args=(socket.SHUT_RDWR,)).start()
    assert sides.one.receive() is None


def test_one_does_not_look_where_cores_are_fewer_than_processes():
    assert spin_seconds_for(1) > 0
    assert spin_seconds_for(10_000) == 0
