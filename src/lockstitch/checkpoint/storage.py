"""Where a checkpoint lies: a folder of this host, or one that `fsspec` reaches by its address
("s3://bucket/folder", "memory://folder", …).

Each file is written whole, and the manifest is replaced in one step: stores do that with all files.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Folder(Protocol):
    """Files under one address."""

    address: str
    """What `open_folder` makes the same folder of, on another worker too."""

    def create(self) -> None:
        """Makes the folder, and those above it, where they are not there."""
        ...

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Makes a file that `write` writes under the path it is given, and keeps it, whole."""
        ...

    def replace(self, name: str, text: str) -> None:
        """Writes a text in place of what the file has, in one step."""
        ...

    def opened(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """A path of this host at which the file can be read. Raises `FileNotFoundError`."""
        ...

    def names(self) -> list[str]:
        """The names of all files."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        ...


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """The folder at a path, or at an address that begins with "<protocol>://"."""
    address = os.fspath(path)
    return StoreFolder(address) if "://" in address else LocalFolder(Path(address).absolute())


class LocalFolder:
    """A folder of a file system that this host has mounted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address = str(path)

    def create(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        write(self._path / name)
        _flush(self._path / name)

    def replace(self, name: str, text: str) -> None:
        fresh = self._path / f".{name}.{uuid.uuid4().hex}"
        fresh.write_text(text)
        _flush(fresh)
        fresh.replace(self._path / name)
        _flush(self._path)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        path = self._path / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there")
        yield path

    def names(self) -> list[str]:
        return [path.name for path in self._path.iterdir()] if self._path.is_dir() else []

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class StoreFolder:
    """A folder that `fsspec` reaches. Files pass through a temporary one of this host."""

    def __init__(self, address: str) -> None:
        import fsspec  # noqa: PLC0415 - takes long, and few want it

        self.address = address
        self._store: Any
        self._store, self._path = fsspec.core.url_to_fs(address)

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def create(self) -> None:
        self._store.makedirs(self._path, exist_ok=True)

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "file"
            write(local)
            self._store.put_file(str(local), self._at(name))

    def replace(self, name: str, text: str) -> None:
        self._store.pipe_file(self._at(name), text.encode())

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        if not self._store.isfile(self._at(name)):
            raise FileNotFoundError(f"{self.address}/{name} is not there")
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "file"
            self._store.get_file(self._at(name), str(local))
            yield local

    def names(self) -> list[str]:
        self._store.invalidate_cache()
        if not self._store.isdir(self._path):
            return []
        found = self._store.ls(self._path, detail=False)
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._store.rm_file(self._at(name))


def _flush(path: Path) -> None:
    """Has the kernel write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
