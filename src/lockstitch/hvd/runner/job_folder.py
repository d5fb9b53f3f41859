"""The folder through which a function goes to the ranks, and their results come back.

Only its user may enter it: what lies there is unpickled. A file appears whole or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from lockstitch.errors import CollectiveError, repr_of
from lockstitch.runtime import remote_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Call = "tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]"


class World(NamedTuple):
    """A rank's place in the world in which it has returned; a job whose workers do not change has
    one world only, number 0."""

    generation: int
    rank: int
    size: int


class JobFolder:
    """The files of one job in a folder that is the caller's."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def put_call(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Writes what the ranks are to do."""
        self._write("call", (func, tuple(args), dict(kwargs)))

    def call(self) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
        """Reads what to do: a function and its arguments."""
        found: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] = self._read("call")
        return found

    def put_result(self, world: World, value: object) -> None:
        """Writes what a rank of a world returned."""
        self._write(f"result.{world.generation}.{world.size}.{world.rank}", value)

    def put_error(self, worker: str, error: BaseException) -> None:
        """Writes what a worker raised."""
        self._write(f"error.{worker}", remote_errors.describe(error, worker))

    def results(self) -> list[Any]:
        """Reads what the ranks of the last world returned, in their order: who has returned in an
        earlier one is not of it. Raises `CollectiveError` where ranks of it, or all there were,
        have returned nothing."""
        worlds = [
            tuple(map(int, path.name.split(".")[1:])) for path in self.folder.glob("result.*")
        ]
        if not worlds:
            raise CollectiveError(
                "no rank has returned anything: each has ended its process itself"
            )
        generation, size, _ = max(worlds)
        found = {rank for number, _, rank in worlds if number == generation}
        if missing := sorted(set(range(size)) - found):
            raise CollectiveError(
                f"of the {size} ranks that met last these have returned nothing: {missing}"
            )
        return [self._read(f"result.{generation}.{size}.{rank}") for rank in range(size)]

    @property
    def verdict(self) -> Path:
        """The file in which the launcher says which worker failed first, and how."""
        return self.folder / "verdict"

    def failure(self) -> tuple[str, BaseException | None]:
        """Returns what the job failed of, in words, and what the worker that failed first has
        raised, if anything. Empty words where the launcher has told of no worker."""
        if not self.verdict.exists():
            return "", None
        worker, how = self.verdict.read_text().split(" ", 1)
        error = self.error(f"rank{worker}")
        words = f"worker {worker} failed first: {how}"
        return (words if error is None else f"{words}; it raised {repr_of(error)}"), error

    def error(self, worker: str) -> BaseException | None:
        """Returns what a worker raised, if anything."""
        name = f"error.{worker}"
        if not (self.folder / name).exists():
            return None
        return remote_errors.rebuild(self._read(name))

    def _write(self, name: str, value: object) -> None:
        unfinished = self.folder / f".{name}.{os.getpid()}"
        unfinished.write_bytes(cloudpickle.dumps(value))
        unfinished.rename(self.folder / name)

    def _read(self, name: str) -> Any:
        return cloudpickle.loads((self.folder / name).read_bytes())
