"""Folders among the system's temporary files that do not outlive the process which made them.

Who ends in good order removes its folders. Who is killed cannot: so whoever makes or removes one
also removes those whose makers are gone. A maker holds a lock on its folder (`flock`), which the
kernel lets go with the process, however that ends. A folder is locked before it has its name, and
the name says on which start of which machine it was made: where a file system is shared with other
machines, locks may not be.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """A fresh folder that only its user may enter (mode 0700), as a context manager or until
    `close`. In `place`, by default where `tempfile` makes its own. Raises `OSError`."""

    def __init__(self, place: str | None = None) -> None:
        place = tempfile.gettempdir() if place is None else place
        self._process = os.getpid()
        nameless = tempfile.mkdtemp(prefix=".lockstitch-", dir=place)
        self._lock = _locked(nameless)
        self.path = Path(place) / (_prefix() + nameless.rpartition("-")[2])
        os.rename(nameless, self.path)
        remove_abandoned(place)

    def __repr__(self) -> str:
        return f"<Folder {self.path}>"

    def close(self) -> None:
        """Removes it, unless this is a forked child; harmless when repeated."""
        lock, self._lock = self._lock, None
        if self._process != os.getpid():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if lock is not None:
            os.close(lock)
            remove_abandoned(str(self.path.parent))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_error: object) -> None:
        self.close()


def remove_abandoned(place: str) -> None:
    """Removes the folders in `place` of those processes of this user that are gone."""
    prefix = _prefix()
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                _remove_if_abandoned(entry.path)


def _remove_if_abandoned(path: str) -> None:
    lock = _locked(path)
    if lock is None:
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _locked(path: str) -> int | None:
    """An open descriptor that holds the lock on a folder; None where somebody else holds it, or
    the file system has no locks."""
    descriptor = -1
    try:
        descriptor = os.open(path, _OPEN)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        return None
    return descriptor


def _prefix() -> str:
    try:
        boot = _BOOT.read_text()[:8]
    except OSError:
        boot = "0"
    return f"lockstitch-{boot}-"
