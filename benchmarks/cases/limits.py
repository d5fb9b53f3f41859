"""What the machine allows at best: a message there and back, with no library in between."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import time
from typing import TYPE_CHECKING

from benchmarks.cases.timing import timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.cases.timing import Sample

MESSAGE = bytes(64)
SPIN_SECONDS = 50e-6


@contextlib.contextmanager
def ping_pong(*, spin: bool) -> Iterator[Sample]:
    """Two processes, a pair of unix sockets; with `spin` each looks for 50 µs before it sleeps."""
    ours, theirs = socket.socketpair()
    echo = multiprocessing.get_context("spawn").Process(target=_echo, args=(theirs, spin))
    with ours:
        with theirs:
            echo.start()
            _exchange(ours, spin)  # it runs: its end of the pair is its own now
        yield timed(lambda: _exchange(ours, spin))
    echo.join()


def _exchange(connection: socket.socket, spin: bool) -> None:
    connection.send(MESSAGE)
    _receive(connection, spin)


def _echo(connection: socket.socket, spin: bool) -> None:
    with connection:
        while message := _receive(connection, spin):
            connection.send(message)


def _receive(connection: socket.socket, spin: bool) -> bytes:
    deadline = time.perf_counter() + SPIN_SECONDS
    while spin and time.perf_counter() < deadline:
        with contextlib.suppress(BlockingIOError):
            return connection.recv(len(MESSAGE), socket.MSG_DONTWAIT)
        os.sched_yield()
    return connection.recv(len(MESSAGE))
