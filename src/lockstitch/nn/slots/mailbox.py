"""Waiting for a message of the other process: a look or two, then asleep.

Being woken takes 30 to 50 µs on a virtual machine, about as much as a small slot's whole step. So a
receiver looks again and again for a moment first. It does not yield the CPU between two looks: a
system may take that for a wish to share it, and run both processes on one.
"""

from __future__ import annotations

import socket
import time
from typing import Final

SPIN_SECONDS: Final = 200e-6


def receive(
    connection: socket.socket, buffer: bytearray, spin_seconds: float = SPIN_SECONDS
) -> int:
    """The length of the next message, received into `buffer`; 0 when the other side is gone."""
    deadline = time.perf_counter() + spin_seconds
    while True:
        try:
            return connection.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if time.perf_counter() > deadline:
                break
        except ConnectionResetError:
            return 0
    try:
        return connection.recv_into(buffer)
    except ConnectionResetError:
        return 0


def is_waiting(connection: socket.socket) -> bool:
    """Whether `receive` would return at once."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) is not None
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
