"""How the ranks of one host come to share a segment, and to wake and to watch each other.

Descriptors travel between processes only over a unix socket. So the first rank of the host listens
for the others once; each brings an eventfd (written to, it wakes the rank) and its pidfd (readable
when the process has ended), and takes home the segment and everybody's eventfds and pidfds. Then
the sockets are closed. Both ends check that the other one belongs to the same user.

Nobody is left behind. A rank maps the segment before it says that it is ready, and begins when the
first one says that all are. Who fails until then hangs up, and says why in the store
(`FailureReason`); who fails later says so in the segment.
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

from lockstitch.collectives.rank_names import RankNames
from lockstitch.errors import CollectiveError
from lockstitch.link.sockets import peer_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    FailureReason = Callable[[float], str | None]
    """Says why a rank has given up, if one has; waits so many seconds at most for somebody to say
    so."""

_HELLO = struct.Struct("<I")
_READY, _GO = b"k", b"g"
_in_words = RankNames().in_words
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
class SharedDescriptors:
    """Descriptors of everything that the ranks of a host share, by local rank; ours to close."""

    segment: int
    eventfds: list[int]
    pidfds: list[int]

    def close(self) -> None:
        """Gives all descriptors back; harmless when repeated."""
        descriptors = [self.segment, *self.eventfds, *self.pidfds]
        self.segment, self.eventfds, self.pidfds = -1, [], []
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def close_segment(self) -> None:
        """The segment is mapped."""
        os.close(self.segment)
        self.segment = -1


class IntroductionListener:
    """A listener of this user at an address without a file. Every rank opens one before it knows
    whether it is the first of its host."""

    def __init__(self) -> None:
        self.address = f"reductions-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen(128)

    def close(self) -> None:
        """Stops listening; harmless when repeated."""
        self._socket.close()

    def receive_all(
        self,
        ranks: Sequence[int],
        segment: int,
        begin: Callable[[SharedDescriptors], B],
        timeout_seconds: float,
        why: FailureReason,
    ) -> B:
        """The part of the first rank: waits for the others, and gives each what it needs. `ranks`
        are those of this host, as people call them; `segment` is taken over."""
        deadline = time.monotonic() + timeout_seconds
        eventfd, pidfd = own_descriptors()
        unknown = [-1] * (len(ranks) - 1)
        known = SharedDescriptors(segment, [eventfd, *unknown], [pidfd, *unknown])
        peers: dict[int, socket.socket] = {}
        backend: B | None = None
        try:
            while len(peers) < len(unknown):
                self._accept_one(peers, known, ranks, deadline, why)
            for peer in peers.values():
                socket.send_fds(peer, [b"s"], [known.segment])
                for pair in zip(known.eventfds, known.pidfds, strict=True):
                    socket.send_fds(peer, [b"m"], list(pair))
            backend = begin(known)
            for local_rank, peer in peers.items():
                if peer.recv(1) != _READY:
                    raise ConnectionError(f"rank {ranks[local_rank]} hung up")
            for peer in peers.values():
                peer.send(_GO)
        except BaseException as error:
            for peer in peers.values():
                peer.close()
            _end(error, ranks, ranks[0], known, backend, why)
            raise
        finally:
            for peer in peers.values():
                peer.close()
        return backend

    def _accept_one(
        self,
        peers: dict[int, socket.socket],
        known: SharedDescriptors,
        ranks: Sequence[int],
        deadline: float,
        why: FailureReason,
    ) -> None:
        """Lets one more rank in, if somebody connects soon; raises where there is no hope left."""
        self._socket.settimeout(_LOOK_SECONDS)
        try:
            peer, _ = self._socket.accept()
        except TimeoutError:
            left = deadline - time.monotonic()
            missing = [each for place, each in enumerate(ranks) if place and place not in peers]
            reason = why(0.0)
            if reason is None and left > 0 and not _has_hung_up(peers.values()):
                return
            raise CollectiveError(
                reason
                or f"rank {ranks[0]} waited for {_in_words(missing)} of its host, which did not "
                "introduce themselves in time, or another one ended meanwhile"
            ) from None
        try:
            if _is_same_user(peer):
                peer.settimeout(max(deadline - time.monotonic(), _LOOK_SECONDS))
                hello, (eventfd, pidfd) = _receive(peer, _HELLO.size, 2)
                (place,) = _HELLO.unpack(hello)
                known.eventfds[place], known.pidfds[place] = eventfd, pidfd
                peers[place] = peer
        finally:
            if peer not in peers.values():
                peer.close()


def join_host(
    address: str,
    local_rank: int,
    ranks: Sequence[int],
    begin: Callable[[SharedDescriptors], B],
    timeout_seconds: float,
    why: FailureReason,
) -> B:
    """The part of every other rank: connects to the first one, and takes home what it gives."""
    eventfd, pidfd = own_descriptors()
    known = SharedDescriptors(-1, [], [])
    backend: B | None = None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
            host.settimeout(timeout_seconds + _GRACE_SECONDS)
            host.connect(f"\0{address}")
            if not _is_same_user(host):
                raise CollectiveError(f"{address!r} is listened at by another user's process")
            socket.send_fds(host, [_HELLO.pack(local_rank)], [eventfd, pidfd])
            _, (known.segment,) = _receive(host, 1, 1)
            for _ in ranks:
                _, (each_eventfd, each_pidfd) = _receive(host, 1, 2)
                known.eventfds.append(each_eventfd)
                known.pidfds.append(each_pidfd)
            backend = begin(known)
            host.send(_READY)
            if host.recv(1) != _GO:
                raise ConnectionError("it hung up")
    except BaseException as error:
        _end(error, ranks, ranks[local_rank], known, backend, why)
        raise
    finally:
        # What came back are copies of these.
        os.close(eventfd)
        os.close(pidfd)
    return backend


def end_introduction(address: str) -> None:
    """Ends the wait of whoever listens at that address, with an error; harmless elsewhere."""
    with (
        contextlib.suppress(OSError),  # nobody is there
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host,
    ):
        host.setblocking(False)
        host.connect(f"\0{address}")


def own_descriptors() -> tuple[int, int]:
    """Opens an eventfd and a pidfd of this process."""
    eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        return eventfd, os.pidfd_open(os.getpid())
    except BaseException:
        os.close(eventfd)
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
    _process, user = peer_credentials(sock)
    return user == os.getuid()


def _has_hung_up(peers: Iterable[socket.socket]) -> bool:
    """Whether one of the peers has hung up; none is to say anything now."""
    poll = select.poll()
    for peer in peers:
        poll.register(peer, select.POLLIN)
    return bool(poll.poll(0))


def _end(
    error: BaseException,
    ranks: Sequence[int],
    rank: int,
    known: SharedDescriptors,
    backend: Begun | None,
    why: FailureReason,
) -> None:
    """Gives back what there is after `error`, and raises an error that says more, if there is one.
    Others may have begun already: they read in the segment that it is over."""
    better = None
    if isinstance(error, OSError):
        others = [each for each in ranks if each != rank] if rank == ranks[0] else [ranks[0]]
        better = CollectiveError(
            why(_PATIENCE_SECONDS)
            or f"rank {rank} and {_in_words(others)} of the same host did not get to know "
            f"each other ({error!r}): one has ended, or was not there in time"
        )
    if backend is None:
        known.close()
    else:
        backend.end(better or error)
    if better is not None:
        raise better from error
