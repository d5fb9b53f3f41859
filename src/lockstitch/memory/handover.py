"""Beside a unix connection: a pair of sockets over which its two ends hand each other descriptors.

A descriptor that travels along a stream of bytes is lost if the reader does not ask for it with the
very byte that it came with, and asking always would make every read dearer. So whoever connects
makes a second pair of sockets and sends one of them along with the very first byte, which is there
for nothing else.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from lockstitch.forks import abandon_in_child

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Note = tuple[bytes, list[Any], int, Any]

WITHOUT: Final = b"\x00"
WITH: Final = b"\x01"
"""First byte of a connection: whether a socket comes along."""

_INT_BYTES: Final = array.array("i").itemsize
_MOST_DESCRIPTORS: Final = 2
# One for the descriptor, one for the file that is opened to map what it stands for.
_KEPT_BACK: Final = 2
_ROOM: Final = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _INT_BYTES)
_LONGEST_NOTE: Final = 64
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_QUIETLY: Final = socket.MSG_DONTWAIT | _NO_SIGNAL
_LOOKING: Final = socket.MSG_DONTWAIT | socket.MSG_PEEK | getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Handover:
    """One end of the pair. Nothing here blocks."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        # Reentrant, because a destructor may close while this very thread is inside.
        self._lock = threading.RLock()  # keeps the descriptor while somebody uses it
        abandon_in_child(self)

    def send(self, note: bytes, descriptor: int) -> None:
        """Hands over a descriptor. Raises `OSError` where that is not possible now."""
        with self._lock:
            self._socket.sendmsg([note], _rights(descriptor), _QUIETLY)

    def look(self, notes: list[Note]) -> None:
        """Appends what has been handed over next and leaves it there until `take`: what comes with
        it would be lost for ever where this process has no descriptor free. Raises
        `BlockingIOError` if there is nothing."""
        with self._lock:  # call and storing are one C call, as in `stream`
            notes.extend(map(self._socket.recvmsg, (_LONGEST_NOTE,), (_ROOM,), (_LOOKING,)))

    def take(self, taken: list[bytes]) -> None:
        """Takes out what `look` has shown, and appends its text."""
        with self._lock:
            taken.extend(map(self._socket.recv, (_LONGEST_NOTE,), (socket.MSG_DONTWAIT,)))

    def close(self) -> None:
        """Ends it; harmless when repeated."""
        with self._lock:
            self._socket.close()

    def abandon(self) -> None:
        """Closes a forked child's copy."""
        self._socket.close()


def offer(sock: socket.socket, *, wanted: bool, descriptors: Sequence[int] = ()) -> Handover | None:
    """Begins the connection on `sock`, which this side has made, with a handover, and hands over
    `descriptors`, one at most. None where it is not wanted, or the system has no more descriptors:
    then it begins without."""
    try:
        ours, theirs = _pair() if wanted else (None, None)
    except OSError:
        ours = theirs = None
    if ours is None or theirs is None:
        sock.sendall(WITHOUT, _NO_SIGNAL)
        return None
    try:
        sock.sendmsg([WITH], _rights(theirs.fileno(), *descriptors), _NO_SIGNAL)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Handover(ours)


def _rights(*descriptors: int) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def receive_beginning(sock: socket.socket, notes: list[Note], flags: int) -> None:
    """Appends the first byte of a connection that somebody has made to us, and what came with it,
    to be read by `begin`. The byte is empty at the end of the stream."""
    flags |= getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    notes.extend(map(sock.recvmsg, (1,), (_ROOM,), (flags,)))


def begin(note: Note) -> tuple[Handover | None, list[int]]:
    """The handover that the caller offers, if it does, and the descriptors that it has handed over
    with it, which whoever asks closes."""
    first, ancillary, _, _ = note
    descriptors = descriptors_in(ancillary)
    if first == WITH and descriptors:
        return Handover(socket.socket(fileno=descriptors[0])), descriptors[1:]
    for descriptor in descriptors:
        os.close(descriptor)
    if first not in (WITH, WITHOUT):
        raise ConnectionError(f"what connected is no worker: it began with {first!r}")
    return None, []  # not offered, or lost: this process may have no more descriptors


def descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors that came with a message."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            with contextlib.suppress(ValueError):
                found.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return list(found)


class Reserve:
    """Descriptors that one worker keeps back for what is handed over to it, as long as somebody
    `hold`s it, even where the process may open no more files.

    A descriptor that somebody sends us is lost where there is no number free for it, and a tensor's
    memory with it. So a few numbers are taken before they are needed, and given free for the moment
    in which one arrives.
    """

    def __init__(self) -> None:
        # Reentrant, because a destructor may let go while this very thread is inside.
        self._lock = threading.RLock()
        self._holders = 0
        self._kept: list[int] = []
        abandon_in_child(self)

    def __len__(self) -> int:
        return len(self._kept)

    def hold(self) -> None:
        """There is one more who may need it."""
        with self._lock:
            self._holders += 1
            self._fill()

    def let_go(self) -> None:
        """There is one less."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                self._empty()

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Within it, the descriptors that were kept back are free. Others may be quicker to take
        them; what is then missing is taken back when there is room again."""
        with self._lock:
            self._empty()
            try:
                yield
            finally:
                self._fill()

    def abandon(self) -> None:
        """A forked child has no use for its copies."""
        self._empty()

    def _fill(self) -> None:
        with contextlib.suppress(OSError):  # there are none now
            while self._holders and len(self._kept) < _KEPT_BACK:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _empty(self) -> None:
        while self._kept:
            os.close(self._kept.pop())
