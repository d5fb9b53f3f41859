"""How the ranks of one host come to share a segment, and to wake and to watch each other.

Descriptors travel between processes only over a unix socket. So the first rank of the host listens
for the others once; each brings its *bell* (an eventfd: written to, it wakes the rank) and its
*life* (a pidfd: readable when the process has ended), and takes home the segment and everybody's
bells and lives. Then the sockets are closed. Both ends look who the other one is: the same user.

Nobody is left behind. A rank maps the segment before it says that it is ready, and begins when the
first one says that all are. Who fails until then hangs up, and says why in the store (`Why`); who
fails later says so in the segment.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from lockstitch.collectives.requests import ranks_in_words
from lockstitch.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Why = Callable[[float], str | None]
    """Why a rank has given up, if one has; waits for the news for so many seconds at most."""

_HELLO = struct.Struct("<I")
_READY, _GO = b"k", b"g"
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 1.0
# So much longer than the first rank the others wait for it.
_GRACE_SECONDS = 5.0


class Begun(Protocol):
    """What a rank begins once it knows the others: a backend."""

    def end(self, error: BaseException) -> None:
        """Ends it with that, for the other ranks too."""
        ...


B = TypeVar("B", bound=Begun)


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

    def receive_all(
        self,
        ranks: Sequence[int],
        segment: int,
        begin: Callable[[Acquaintance], B],
        timeout_seconds: float,
        why: Why,
    ) -> B:
        """The first rank's part: waits for the others, and gives each what it needs. `ranks` are
        those of this host, as they are called elsewhere; `segment` is taken over."""
        deadline = time.monotonic() + timeout_seconds
        bells, lives = own_descriptors()
        unknown = [-1] * (len(ranks) - 1)
        known = Acquaintance(segment, [bells, *unknown], [lives, *unknown])
        guests: dict[int, socket.socket] = {}
        backend: B | None = None
        try:
            while len(guests) < len(unknown):
                self._let_in(guests, known, ranks, deadline, why)
            for guest in guests.values():
                socket.send_fds(guest, [b"s"], [known.segment])
                for pair in zip(known.bells, known.lives, strict=True):
                    socket.send_fds(guest, [b"m"], list(pair))
            backend = begin(known)
            for local_rank, guest in guests.items():
                if guest.recv(1) != _READY:
                    raise ConnectionError(f"rank {ranks[local_rank]} hung up")
            for guest in guests.values():
                guest.send(_GO)
        except BaseException as error:
            for guest in guests.values():
                guest.close()
            _end(error, ranks, ranks[0], known, backend, why)
            raise
        finally:
            for guest in guests.values():
                guest.close()
        return backend

    def _let_in(
        self,
        guests: dict[int, socket.socket],
        known: Acquaintance,
        ranks: Sequence[int],
        deadline: float,
        why: Why,
    ) -> None:
        """One more, if somebody knocks soon; raises where there is no hope left."""
        self._socket.settimeout(_LOOK_SECONDS)
        try:
            guest, _ = self._socket.accept()
        except TimeoutError:
            left = deadline - time.monotonic()
            missing = [each for place, each in enumerate(ranks) if place and place not in guests]
            reason = why(0.0)
            if reason is None and left > 0 and not _has_hung_up(guests.values()):
                return
            raise CollectiveError(
                reason
                or f"rank {ranks[0]} waited for {ranks_in_words(missing)} of its host, which did "
                "not introduce themselves in time, or another one ended meanwhile"
            ) from None
        try:
            if _is_same_user(guest):
                guest.settimeout(max(deadline - time.monotonic(), _LOOK_SECONDS))
                hello, (bell, life) = _receive(guest, _HELLO.size, 2)
                (place,) = _HELLO.unpack(hello)
                known.bells[place], known.lives[place] = bell, life
                guests[place] = guest
        finally:
            if guest not in guests.values():
                guest.close()


def introduce_oneself(
    address: str,
    local_rank: int,
    ranks: Sequence[int],
    begin: Callable[[Acquaintance], B],
    timeout_seconds: float,
    why: Why,
) -> B:
    """The part of every other rank."""
    bell, life = own_descriptors()
    known = Acquaintance(-1, [], [])
    backend: B | None = None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
            host.settimeout(timeout_seconds + _GRACE_SECONDS)
            host.connect(f"\0{address}")
            if not _is_same_user(host):
                raise CollectiveError(f"{address!r} is listened at by another user's process")
            socket.send_fds(host, [_HELLO.pack(local_rank)], [bell, life])
            _, (known.segment,) = _receive(host, 1, 1)
            for _ in ranks:
                _, (each_bell, each_life) = _receive(host, 1, 2)
                known.bells.append(each_bell)
                known.lives.append(each_life)
            backend = begin(known)
            host.send(_READY)
            if host.recv(1) != _GO:
                raise ConnectionError("it hung up")
    except BaseException as error:
        _end(error, ranks, ranks[local_rank], known, backend, why)
        raise
    finally:
        # What came back are copies of these.
        os.close(bell)
        os.close(life)
    return backend


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


def _has_hung_up(guests: Iterable[socket.socket]) -> bool:
    """Whether one of them has, who are to say nothing now."""
    poll = select.poll()
    for guest in guests:
        poll.register(guest, select.POLLIN)
    return bool(poll.poll(0))


def _end(
    error: BaseException,
    ranks: Sequence[int],
    rank: int,
    known: Acquaintance,
    backend: Begun | None,
    why: Why,
) -> None:
    """Gives back what there is; raises what says more than the error. Others may have begun
    already: they read in the segment that it is over."""
    better = None
    if isinstance(error, OSError):
        others = [each for each in ranks if each != rank] if rank == ranks[0] else [ranks[0]]
        better = CollectiveError(
            why(_PATIENCE_SECONDS)
            or f"rank {rank} and {ranks_in_words(others)} of the same host did not get to know "
            f"each other ({error!r}): one has ended, or was not there in time"
        )
    if backend is None:
        known.close()
    else:
        backend.end(better or error)
    if better is not None:
        raise better from error
