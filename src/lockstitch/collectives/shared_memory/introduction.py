"""How the ranks of one host come to share a segment, and to wake and to watch each other.

Descriptors travel between processes only over a unix socket. So the first rank of the host listens
for the others once; each brings its *bell* (an eventfd: written to, it wakes the rank) and its
*life* (a pidfd: readable when the process has ended), and takes home the segment and everybody's
bells and lives. Then the sockets are closed. Both ends look who the other one is: the same user.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Sequence

_HELLO = struct.Struct("<I")


@dataclass(slots=True)
class Acquaintance:
    """Descriptors of everything that the ranks of a host share, by local rank; ours to close."""

    segment: int
    bells: list[int]
    lives: list[int]

    def close(self) -> None:
        """Gives all descriptors back; harmless when repeated."""
        descriptors = [self.segment, *self.bells, *self.lives]
        self.segment, self.bells, self.lives = -1, [], []
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def close_segment(self) -> None:
        """The segment is mapped."""
        os.close(self.segment)
        self.segment = -1


class Doorway:
    """A listener of this user at an address without a file. Every rank opens one before it knows
    whether it is the first of its host."""

    def __init__(self) -> None:
        self.address = f"reductions-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen(128)

    def close(self) -> None:
        """Harmless when repeated."""
        self._socket.close()

    def receive_all(self, count: int, segment: int, timeout_seconds: float) -> Acquaintance:
        """The first rank's part: waits for the others, and gives each what it needs. `segment` is
        taken over."""
        bells, lives = own_descriptors()
        known = Acquaintance(segment, [bells] + [-1] * (count - 1), [lives] + [-1] * (count - 1))
        guests: list[socket.socket] = []
        try:
            self._socket.settimeout(timeout_seconds)
            while len(guests) < count - 1:
                guest, _ = self._socket.accept()
                guests.append(guest)
                if not _is_same_user(guest):
                    guests.pop().close()
                    continue
                guest.settimeout(timeout_seconds)
                hello, (bell, life) = _receive(guest, _HELLO.size, 2)
                (local_rank,) = _HELLO.unpack(hello)
                known.bells[local_rank], known.lives[local_rank] = bell, life
            for guest in guests:
                socket.send_fds(guest, [b"s"], [known.segment])
                for pair in zip(known.bells, known.lives, strict=True):
                    socket.send_fds(guest, [b"m"], list(pair))
            for guest in guests:
                guest.recv(1)  # it has everything
        except BaseException as error:
            known.close()
            if isinstance(error, OSError):
                raise _failure(timeout_seconds) from error
            raise
        finally:
            for guest in guests:
                guest.close()
        return known


def introduce_oneself(
    address: str, local_rank: int, count: int, timeout_seconds: float
) -> Acquaintance:
    """The part of every other rank."""
    bell, life = own_descriptors()
    known = Acquaintance(-1, [], [])
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
            host.settimeout(timeout_seconds)
            host.connect(f"\0{address}")
            if not _is_same_user(host):
                raise CollectiveError(f"{address!r} is listened at by another user's process")
            socket.send_fds(host, [_HELLO.pack(local_rank)], [bell, life])
            _, (known.segment,) = _receive(host, 1, 1)
            for _ in range(count):
                _, (each_bell, each_life) = _receive(host, 1, 2)
                known.bells.append(each_bell)
                known.lives.append(each_life)
            host.send(b"k")
    except BaseException as error:
        known.close()
        if isinstance(error, OSError):
            raise _failure(timeout_seconds) from error
        raise
    finally:
        # What came back are copies of these.
        os.close(bell)
        os.close(life)
    return known


def knock_in_vain(address: str) -> None:
    """Ends the wait of whoever waits behind that door, with an error; harmless elsewhere."""
    with (
        contextlib.suppress(OSError),  # nobody is there
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host,
    ):
        host.setblocking(False)
        host.connect(f"\0{address}")


def own_descriptors() -> tuple[int, int]:
    """This process's bell and life."""
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        return bell, os.pidfd_open(os.getpid())
    except BaseException:
        os.close(bell)
        raise


def _receive(sock: socket.socket, size: int, count: int) -> tuple[bytes, Sequence[int]]:
    content, descriptors, _, _ = socket.recv_fds(sock, size, count)
    if len(content) != size or len(descriptors) != count:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        raise ConnectionError("the other end hung up")
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return content, descriptors


def _is_same_user(sock: socket.socket) -> bool:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _pid, uid, _gid = struct.unpack("iII", credentials)
    return bool(uid == os.getuid())


def _failure(timeout_seconds: float) -> CollectiveError:
    return CollectiveError(
        f"the ranks of this host did not all introduce themselves within {timeout_seconds} s, or "
        "one of them ended meanwhile"
    )
