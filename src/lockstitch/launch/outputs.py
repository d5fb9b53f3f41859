"""What the workers say, also in files: `FOLDER/rank.3/stdout` and `FOLDER/rank.3/stderr`."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Outputs:
    """The files of what workers say; a context manager. Folders and files are made when a worker
    says its first word."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._width = len(str(max(workers - 1, 0)))
        self._files: dict[tuple[int, str], IO[bytes]] = {}

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, *_error: object) -> None:
        for file in self._files.values():
            file.close()

    def line(self, worker: int, stream: str, text: bytes) -> None:
        """Writes a line that `worker` wrote to `stream` ("stdout" or "stderr")."""
        file = self._files.get((worker, stream))
        if file is None:
            folder = self._folder / f"rank.{worker:0{self._width}}"
            folder.mkdir(parents=True, exist_ok=True)
            file = self._files[worker, stream] = (folder / stream).open("wb", buffering=0)
        file.write(text + b"\n")
