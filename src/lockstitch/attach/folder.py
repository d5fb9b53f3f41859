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
import re
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lockstitch.attach.values import Card
from lockstitch.errors import RemoteProtocolError
from lockstitch.link.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE: Final = "LOCKSTITCH_RUNTIME_DIR"
_SOCKET: Final = ".socket"
_FRESH: Final = ".fresh"
"""Where a socket or a file is made that is then put in its place."""
_CARD: Final = ".card"
_NEW: Final = ".new"
_ELSEWHERE: Final = ".elsewhere"
CARDS: Final = Codec(Card, complaint="this is no card of a process", by_name=True)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where the workers of a job can be asked that run on other hosts (`host:port` each), and the
    secret that this takes, which is derived from the job's and good for nothing else."""

    addresses: tuple[str, ...]
    secret: str


_NAME: Final = re.compile(r"(\d+)-(\d+)\.[a-z]+", re.ASCII)
_ELSEWHERES: Final = Codec(Elsewhere, complaint="this tells of no other hosts", by_name=True)


def encode_elsewhere(elsewhere: Elsewhere) -> bytes:
    """Returns it as it stands in a file."""
    return _ELSEWHERES.encode(elsewhere)


def decode_elsewhere(content: bytes) -> Elsewhere | None:
    """Returns what stands in a file; None where that is nothing, or of another version."""
    try:
        return _ELSEWHERES.decode(content)
    except RemoteProtocolError:
        return None


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
    def fresh_address(self) -> Path:
        """Where its socket is made, before it listens: who connects too early is refused, and takes
        the process for gone."""
        return self.address.with_suffix(_FRESH)

    @property
    def _card(self) -> Path:
        return self.address.with_suffix(_CARD)

    def is_there(self) -> bool:
        """Returns whether it has a socket."""
        return self.address.exists()

    def age_seconds(self) -> float:
        """Returns how long ago its latest file was written."""
        times = []
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                times.append(path.stat().st_mtime)
        return time.time() - max(times, default=time.time())

    def write_card(self, card: Card) -> None:
        """Writes or replaces the card. Raises `OSError`."""
        fresh = self._card.with_suffix(_NEW)
        fresh.write_bytes(CARDS.encode(card))
        fresh.replace(self._card)

    def read_card(self) -> Card | None:
        """Returns the card; None where there is none, or one of another version."""
        try:
            return CARDS.decode(self._card.read_bytes())
        except (OSError, RemoteProtocolError):
            return None

    def write_elsewhere(self, elsewhere: Elsewhere) -> None:
        """Writes or replaces what is known of other hosts, for this user alone. Raises
        `OSError`."""
        path = self._card.with_suffix(_ELSEWHERE)
        fresh = path.with_suffix(_NEW)
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(encode_elsewhere(elsewhere))
        fresh.replace(path)

    def read_elsewhere(self) -> Elsewhere | None:
        """Returns what is known of other hosts; None where nothing is."""
        try:
            return decode_elsewhere(self._card.with_suffix(_ELSEWHERE).read_bytes())
        except OSError:
            return None

    def remove(self) -> None:
        """Removes what is there; harmless when repeated."""
        for path in self._files():
            with contextlib.suppress(OSError):
                path.unlink()

    def _files(self) -> list[Path]:
        suffixes = (_SOCKET, _FRESH, _CARD, _NEW, _ELSEWHERE)
        return [self.address.with_suffix(each) for each in suffixes]

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
    """Yields the entries of a folder by number, also such without a socket; raises what
    `check_folder` raises."""
    check_folder(folder)
    found = (_NAME.fullmatch(name) for name in os.listdir(folder))
    numbers = {(int(each[1]), int(each[2])) for each in found if each is not None}
    yield from (Entry(folder, pid, birth) for pid, birth in sorted(numbers))
