"""What the machine allows at best: the same bytes with no library in between.

Messages go through a bare socket to a Python process that sends them back, under our own waiting
rule; tensors through one copy in memory; backward passes through torch's engine in one process.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.cases.echo import receive
from benchmarks.cases.timing import timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.cases.timing import Sample

MESSAGE_BYTES = 128
_ECHO = Path(__file__).with_name("echo.py")


@contextlib.contextmanager
def echo_process(tcp: bool, mode: str, size: int, spin: bool) -> Iterator[socket.socket]:
    """A socket whose other end is in the hands of `echo.py`."""
    ours, theirs = _tcp_pair() if tcp else socket.socketpair()
    command = [sys.executable, "-S", "-E", str(_ECHO), str(theirs.fileno()), mode, str(size)]
    with ours:
        with theirs:
            echo = subprocess.Popen(
                [*command, "spin" if spin else "sleep"], pass_fds=[theirs.fileno()]
            )
        try:
            yield ours
        finally:
            ours.close()
            echo.wait(10)


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


@contextlib.contextmanager
def ping_pong(
    _library: None, trips: int = 1, spin: bool = True, tcp: bool = False
) -> Iterator[Sample]:
    """A message there and back, `trips` times one after the other."""
    message = bytes(MESSAGE_BYTES)
    with echo_process(tcp, "message", MESSAGE_BYTES, spin) as connection:

        def there_and_back() -> None:
            for _ in range(trips):
                connection.send(message)
                receive(connection, MESSAGE_BYTES, spin)

        yield timed(there_and_back)


@contextlib.contextmanager
def in_flight(_library: None, count: int) -> Iterator[Sample]:
    """`count` messages sent one by one, then their echoes read, per message."""
    message = bytes(MESSAGE_BYTES)
    with echo_process(tcp=False, mode="message", size=MESSAGE_BYTES, spin=True) as connection:

        def wave() -> None:
            for _ in range(count):
                connection.send(message)
            missing = count * MESSAGE_BYTES
            while missing:
                missing -= len(receive(connection, missing, spin=True))

        yield timed(wave, count)


def memory_copy(_library: None, size: int, copies: int = 1) -> Sample:
    """Copies of `size` bytes between warm buffers."""
    source, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))

    def copy() -> None:
        for _ in range(copies):
            target.copy_(source)

    return timed(copy)


@contextlib.contextmanager
def tcp_stream(_library: None, size: int) -> Iterator[Sample]:
    """`size` bytes through a TCP socket into a warm buffer, and one byte back."""
    content = bytes(size)
    with echo_process(tcp=True, mode="stream", size=size, spin=False) as connection:

        def send() -> None:
            connection.sendall(content)
            connection.recv(1)

        yield timed(send)
