"""Who answers for a host when the process that did is gone: another of the job's processes there.

The gateway's process holds a lock (`flock`) on a file of this user's folder that is named after its
address. Each other process waits for that lock, and sleeps in the kernel meanwhile, which gives it
to one of them when its holder is gone, however it has ended. The address stays what it was, so
nobody has to be told; what else the next one has to know stands in the file. It is removed by
whoever looks next when nobody holds it any more.

A process that is stopped, or hangs, is not gone, and holds its lock and its address. So the others
borrow the socket at which it listens: whom it does not let in, one of them does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from typing import TYPE_CHECKING, Final

from lockstitch.attach.endpoint import QUESTIONS
from lockstitch.attach.folder import Elsewhere, decode_elsewhere, encode_elsewhere, entries
from lockstitch.attach.values import Question
from lockstitch.forks import abandon_in_child

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIX: Final = ".gateway"
_LONGEST: Final = 1 << 24
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_TRIES: Final = 5
_LOAN_SECONDS: Final = 2.0


class Seat:
    """The lock that goes with a gateway's address. Raises `OSError` where there is no such file,
    and none can be made."""

    def __init__(self, folder: Path, address: str) -> None:
        self._path = folder / f"{address}{_SUFFIX}"
        self._file = os.open(self._path, _FLAGS, 0o600)
        abandon_in_child(self)

    def __repr__(self) -> str:
        return f"<Seat {self._path.name}{' · closed' if self._file < 0 else ''}>"

    def take(self) -> bool:
        """Takes it, whoever had that address before; returns whether nobody else has it now."""
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self._is_removed():
                    os.ftruncate(self._file, 0)
                    return True
            if not self._open_again():
                break
        return False

    def read(self) -> Elsewhere | None:
        """Returns what whoever has it knows of other hosts; None where that is nothing yet."""
        with contextlib.suppress(OSError):
            if self._is_removed():
                self._open_again()
            return decode_elsewhere(os.pread(self._file, _LONGEST, 0))
        return None

    def await_vacancy(self) -> Elsewhere | None:
        """Waits until whoever has it is gone, and takes it. Returns what that one knew of other
        hosts; None where it knew nothing, or the file system has no locks."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX)
            return decode_elsewhere(os.pread(self._file, _LONGEST, 0))
        return None

    def _is_removed(self) -> bool:
        """Whether somebody has removed the file, who found it between its opening and its lock."""
        return os.fstat(self._file).st_nlink == 0

    def _open_again(self) -> bool:
        """Opens the file that is at that place now, unless it is the same."""
        if not self._is_removed():
            return False
        os.close(self._file)
        self._file = -1
        self._file = os.open(self._path, _FLAGS, 0o600)
        return True

    def write(self, elsewhere: Elsewhere) -> None:
        """Leaves to the next one what is known of other hosts."""
        content = encode_elsewhere(elsewhere)
        with contextlib.suppress(OSError):
            os.pwrite(self._file, content, 0)
            os.ftruncate(self._file, len(content))

    def close(self) -> None:
        """Gives it up, and has no part in it any more; harmless when repeated."""
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)

    def abandon(self) -> None:
        """A forked child has no part in it."""
        self.close()


def borrow_listener(folder: Path, address: str) -> int | None:
    """Returns the socket at which the gateway of that address listens, as a descriptor of this
    process; None where nobody lends it."""
    for entry in entries(folder):
        card = entry.read_card()
        if card is None or card.gateway != address or entry.pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            connection = entry.connect()
            if connection is None:
                continue
            with connection:
                connection.settimeout(_LOAN_SECONDS)
                connection.sendall(QUESTIONS.encode(Question(lends=True)))
                connection.shutdown(socket.SHUT_WR)
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            if descriptors:
                return descriptors[0]
    return None


def remove_vacant(folder: Path) -> None:
    """Removes the files of those that nobody has. Who waits for one has it open, and gets it
    nevertheless."""
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)
