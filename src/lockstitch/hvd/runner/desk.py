"""The folder through which a function goes to the ranks, and their results come back.

Only its user may enter it: what lies there is unpickled. A file appears whole or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from lockstitch.runtime import remote_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Call = "tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]"


class Desk:
    """See the module; the folder is the caller's."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def put_call(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """What the ranks are to do."""
        self._write("call", (func, tuple(args), dict(kwargs)))

    def call(self) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
        """What to do."""
        found: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] = self._read("call")
        return found

    def put_result(self, rank: int, value: object) -> None:
        """What a rank returned."""
        self._write(f"result.{rank}", value)

    def put_error(self, worker: str, error: BaseException) -> None:
        """What a worker raised."""
        self._write(f"error.{worker}", remote_errors.describe(error, worker))

    def results(self, size: int) -> list[Any]:
        """What the ranks returned, in their order. `FileNotFoundError` where one is missing."""
        return [self._read(f"result.{rank}") for rank in range(size)]

    def world_size(self) -> int:
        """How many ranks have returned something."""
        return len(list(self.folder.glob("result.*")))

    def error(self) -> BaseException | None:
        """The error that was raised first, if any."""
        files = sorted(self.folder.glob("error.*"), key=lambda file: file.stat().st_mtime_ns)
        return remote_errors.rebuild(self._read(files[0].name)) if files else None

    def _write(self, name: str, value: object) -> None:
        unfinished = self.folder / f".{name}.{os.getpid()}"
        unfinished.write_bytes(cloudpickle.dumps(value))
        unfinished.rename(self.folder / name)

    def _read(self, name: str) -> Any:
        return cloudpickle.loads((self.folder / name).read_bytes())
