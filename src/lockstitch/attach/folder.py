"""The folder of this user's running processes, and what lies in it.

Each process that can be asked has a socket there, and beside it a *card*, a file that says who it
is. Both are named after its number and the time of its birth, since numbers are given out again.
Only the user may enter the folder; one that somebody else has made, or may enter, is not used.

A process removes its own two files when it ends. Those of one that could not are removed by whoever
looks next: nobody accepts connections at their socket any more.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockstitch.attach.values import Card
from lockstitch.errors import RemoteProtocolError
from lockstitch.link.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE: Final = "LOCKSTITCH_RUNTIME_DIR"
_SOCKET: Final = ".socket"
_CARD: Final = ".card"
CARDS: Final = Codec(Card, complaint="this is no card of a process", by_name=True)


def folder_of(environment: Mapping[str, str], user: int) -> Path:
    """Returns where the processes of a user are listed: LOCKSTITCH_RUNTIME_DIR, else a folder in
    /tmp, whatever else a program may use for temporary files, since all must come to the same."""
    given = environment.get(VARIABLE)
    return Path(given) if given else Path(f"/tmp/lockstitch-{user}")


def make_folder(path: Path) -> None:
    """Makes the folder unless it is there. Raises `PermissionError` where it is not for this user
    alone, and `OSError` where it cannot be made."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raises `PermissionError` unless the folder belongs to this user, who alone may enter it, and
    `FileNotFoundError` where there is none."""
    found = os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        why = "is no folder"
    elif found.st_uid != os.geteuid():
        why = f"belongs to user {found.st_uid}, not to the user of this process, {os.geteuid()}"
    elif mode & 0o077:
        why = f"can be entered by others (its mode is {mode:04o}, not 0700)"
    else:
        return
    raise PermissionError(f"{path} {why}; name another folder in {VARIABLE}")


class Entry:
    """The place of one process in the folder."""

    def __init__(self, folder: Path, pid: int, born: int) -> None:
        self.folder = folder
        self.pid = pid
        self.born = born

    def __repr__(self) -> str:
        return f"<Entry {self.address}>"

    @property
    def address(self) -> Path:
        """Where its socket is."""
        return self.folder / f"{self.pid}-{self.born}{_SOCKET}"

    @property
    def _card(self) -> Path:
        return self.folder / f"{self.pid}-{self.born}{_CARD}"

    def write_card(self, card: Card) -> None:
        """Writes or replaces the card. Raises `OSError`."""
        fresh = self._card.with_suffix(".new")
        fresh.write_bytes(CARDS.encode(card))
        fresh.replace(self._card)

    def read_card(self) -> Card | None:
        """Returns the card; None where there is none, or one of another version."""
        try:
            return CARDS.decode(self._card.read_bytes())
        except (OSError, RemoteProtocolError):
            return None

    def remove(self) -> None:
        """Removes what is there; harmless when repeated."""
        for path in (self.address, self._card, self._card.with_suffix(".new")):
            with contextlib.suppress(OSError):
                path.unlink()

    def connect(self) -> socket.socket | None:
        """Connects to its socket, without waiting; None where nobody listens there, in which case
        it is removed. Raises `BlockingIOError` where more want to ask than it takes in."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(str(self.address))
        except (ConnectionRefusedError, FileNotFoundError):
            connection.close()
            self.remove()
            return None
        except BaseException:
            connection.close()
            raise
        return connection


def entries(folder: Path) -> Iterator[Entry]:
    """Yields the entries of a folder by number; raises what `check_folder` raises."""
    check_folder(folder)
    names = [name for name in os.listdir(folder) if name.endswith(_SOCKET)]
    found = [name.removesuffix(_SOCKET).partition("-") for name in names]
    numbers = [
        (int(pid), int(birth)) for pid, _, birth in found if pid.isdecimal() and birth.isdecimal()
    ]
    yield from (Entry(folder, pid, birth) for pid, birth in sorted(numbers))
