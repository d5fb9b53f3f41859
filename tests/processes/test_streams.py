"""Streams between two real processes: integrity, the peer's death, and Ctrl-C at any moment."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.unix import UnixTransport
from tests.unit.transport.streams import receive_all, receive_some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.transport.base import Connection, Transport

LARGE_BYTES = 4 << 20  # more than a socket takes at once
BLOCK_BYTES = 100_003
MESSAGE_BYTES = 300_000
ENOUGH_HITS = 40

DIAL = """
import random, sys
from lockstitch.transport.tcp import TcpTransport
from lockstitch.transport.unix import UnixTransport

address = sys.argv[1]
transport = UnixTransport() if address.startswith("unix:") else TcpTransport()
connection = transport.connect(address, 10.0)
view = memoryview(bytearray(1 << 16))

def receive():
    counts = []
    connection.receive_into(view, counts, None)
    return view[:counts[0]]
"""

ECHO = (
    DIAL
    + """
while some := receive():
    connection.send([some])
"""
)

STREAM = (
    DIAL
    + f"""
block = random.Random(1).randbytes({BLOCK_BYTES})
try:
    while True:
        connection.send([block])
except ConnectionError:
    pass
"""
)

# Reads numbered messages, each filled with its number's low byte, and says which ones came whole.
CHECK = (
    DIAL
    + f"""
received = bytearray()
while some := receive():
    received += some
size = {MESSAGE_BYTES}
numbers = []
for start in range(0, len(received), size):
    message = received[start : start + size]
    number = int.from_bytes(message[:4], "big")
    whole = message == number.to_bytes(4, "big") + bytes([number % 256]) * (size - 4)
    numbers.append(number if whole else -1)
print(*numbers)
"""
)


@pytest.fixture(params=[UnixTransport, TcpTransport], ids=["unix", "tcp"])
def transport(request) -> Iterator[Transport]:
    transport = request.param()
    yield transport
    transport.close()


@contextlib.contextmanager
def peer(transport: Transport, script: str) -> Iterator[tuple[subprocess.Popen[str], Connection]]:
    """A child process that runs `script`, and our connection with it."""
    listener, poller = transport.listen(), transport.poller()
    poller.add(listener)
    poller.arm(listener)
    command = [sys.executable, "-c", script, listener.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert poller.wait(30), "the child did not connect"
            connection = listener.accept()
            assert connection is not None
            yield process, connection
            connection.close()
        finally:
            process.kill()
            poller.close()
            listener.close()


class Interrupt(BaseException):
    """Our Ctrl-C."""


class Storm:
    """Interrupts the main thread every fraction of a millisecond, while it is inside `during`."""

    def __init__(self) -> None:
        self.hits = 0
        self._armed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._blow)

    def __enter__(self) -> Storm:
        self._former = signal.signal(signal.SIGUSR1, self._handle)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._former)

    def during(self, call: Callable[[], object]) -> bool:
        """Whether `call` ended without having been interrupted."""
        try:
            self._armed = True
            call()
            self._armed = False
        except Interrupt:
            self.hits += 1
            return False
        return True

    def _handle(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise Interrupt

    def _blow(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._over.wait(random.uniform(0.0001, 0.001)):
            signal.pthread_kill(main, signal.SIGUSR1)


def test_a_large_message_comes_back_as_it_was(transport):
    message = random.Random(0).randbytes(LARGE_BYTES)
    with peer(transport, ECHO) as (_, connection):
        sender = threading.Thread(target=connection.send, args=([message],))
        sender.start()
        assert receive_all(connection, LARGE_BYTES) == message
        sender.join()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_receiver_learns_of_its_peers_death(transport, end):
    with peer(transport, ECHO) as (process, connection):
        connection.send([b"alive?"])
        assert receive_all(connection, 6) == b"alive?"
        outcomes = []
        receiver = threading.Thread(target=lambda: outcomes.append(receive_some(connection)))
        receiver.start()
        process.send_signal(end)
        receiver.join()
        assert outcomes == [b""]


def test_a_blocked_sender_learns_of_its_peers_death(transport):
    with peer(transport, DIAL + "import signal; signal.pause()") as (process, connection):
        errors = []

        def send() -> None:
            try:
                connection.send([bytes(8 * LARGE_BYTES)])
            except ConnectionError as error:
                errors.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        sender.join(0.05)
        assert sender.is_alive()
        process.kill()
        sender.join()
        assert len(errors) == 1


def test_interrupts_lose_no_byte_of_what_is_received(transport):
    block = random.Random(1).randbytes(BLOCK_BYTES)
    received = bytearray()
    view = memoryview(bytearray(1000))
    with peer(transport, STREAM) as (_, connection), Storm() as storm:
        while storm.hits < ENOUGH_HITS:
            counts: list[int] = []
            storm.during(lambda counts=counts: connection.receive_into(view, counts, None))
            for count in counts:
                assert count > 0
                received += view[:count]
    assert received == (block * (len(received) // BLOCK_BYTES + 1))[: len(received)]


def test_interrupts_cut_no_message_that_is_sent(transport):
    with peer(transport, CHECK) as (process, connection):
        number = 0
        undisturbed = []
        with Storm() as storm:
            while storm.hits < ENOUGH_HITS:
                number += 1
                head, body = number.to_bytes(4, "big"), bytes([number % 256]) * (MESSAGE_BYTES - 4)
                buffers = [head + body] if number % 2 else [head, body]
                if storm.during(lambda buffers=buffers: connection.send(buffers)):
                    undisturbed.append(number)
        assert not connection.is_closed
        connection.close()
        arrived = [int(word) for word in process.stdout.read().split()]
        assert arrived == sorted(set(arrived))
        assert -1 not in arrived
        assert set(undisturbed) <= set(arrived)
