"""The other end of a raw socket: a process of its own that sends back what it gets.

Run as a script with the descriptor of a socket, and what to do: `message SIZE SPIN` answers each
message of SIZE bytes with itself, `stream SIZE` takes SIZE bytes in and answers with one byte. It
imports nothing but what it needs, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

SPIN_SECONDS = 50e-6


def receive(connection: socket.socket, size: int, spin: bool) -> bytes:
    """At least one byte and at most `size`; with `spin`, looks for 50 µs before it sleeps."""
    deadline = time.perf_counter() + SPIN_SECONDS
    while spin and time.perf_counter() < deadline:
        with contextlib.suppress(BlockingIOError):
            return connection.recv(size, socket.MSG_DONTWAIT)
        os.sched_yield()
    return connection.recv(size)


def exchange_messages(connection: socket.socket, size: int, spin: bool) -> None:
    """Until the other end closes."""
    while message := receive(connection, 64 * size, spin):
        connection.sendall(message)


def take_streams(connection: socket.socket, size: int) -> None:
    """Into one buffer that is warm after the first time."""
    buffer = memoryview(bytearray(size))
    while True:
        taken = 0
        while taken < size:
            count = connection.recv_into(buffer[taken:])
            if not count:
                return
            taken += count
        connection.sendall(b"!")


def main() -> None:
    descriptor, mode, size, spin = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    with socket.socket(fileno=descriptor) as connection:
        if mode == "message":
            exchange_messages(connection, size, spin == "spin")
        else:
            take_streams(connection, size)


if __name__ == "__main__":
    main()
