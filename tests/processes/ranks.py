"""Ranks of a session, each a process of its own, forked from the test.

    with RankProcesses(2) as ranks:
        results = ranks.run(function, "shared_memory")

`function(rank, size, store_file, *arguments)` runs in each; values and errors come back by pipe.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_SECONDS = 150


class RankProcesses:
    """A context manager; no process is left when the block is over."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._context = multiprocessing.get_context("fork")
        self._members: list[tuple[Any, Connection]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="lockstitch-")

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_error: object) -> None:
        for process, pipe in self._members:
            process.kill()
            process.join()
            process.close()
            pipe.close()
        self._folder.cleanup()

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """Begins the processes."""
        for rank in range(self.size):
            near, far = self._context.Pipe()
            file = str(Path(self._folder.name) / "store")
            process = self._context.Process(
                target=_live, args=(function, rank, self.size, file, arguments, far)
            )
            process.start()
            far.close()
            self._members.append((process, near))

    @property
    def folder(self) -> str:
        """Where the store is."""
        return self._folder.name

    def pid(self, rank: int) -> int:
        return self._members[rank][0].pid

    def kill(self, rank: int) -> None:
        self._members[rank][0].kill()

    def next(self, rank: int) -> Any:
        """What the rank says or returns next; raises what it raised."""
        pipe = self._members[rank][1]
        assert pipe.poll(_SECONDS), f"rank {rank} says nothing"
        is_value, value = pipe.recv()
        if not is_value:
            raise AssertionError(f"rank {rank} raised {value}")
        return value

    def run(self, function: Callable[..., object], *arguments: object) -> list[Any]:
        """Starts, and waits for all results."""
        self.start(function, *arguments)
        return [self.next(rank) for rank in range(self.size)]


def _live(
    function: Callable[..., object],
    rank: int,
    size: int,
    file: str,
    arguments: tuple[object, ...],
    pipe: Connection,
) -> None:
    torch.set_num_threads(1)  # after a fork, torch may abort otherwise
    with contextlib.suppress(BrokenPipeError):
        try:
            value = function(rank, size, file, *arguments)
        except BaseException as error:  # noqa: BLE001 - raised in the test
            pipe.send((False, repr(error)))
        else:
            pipe.send((True, value))
