"""Several workers that join at the same time, in threads, each with its own client of a store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import pytest
from torch.distributed import FileStore, HashStore, TCPStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.distributed import Store

T = TypeVar("T")

# libuv makes a pipe with its first loop and keeps it for good; no single test left that behind.
TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

each_kind_of_store = pytest.mark.parametrize("kind", ["hash", "file", "tcp"])


def new_store(kind: str, folder: Path) -> Store:
    if kind == "hash":
        return HashStore()
    if kind == "file":
        return FileStore(str(folder / "store"), -1)
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def all_at_once(*tasks: Callable[[], T]) -> list[T | Exception]:
    """What each returned, or the exception that it raised."""
    outcomes: list[T | Exception] = [RuntimeError("did not end")] * len(tasks)

    def run(index: int) -> None:
        try:
            outcomes[index] = tasks[index]()
        except Exception as error:  # noqa: BLE001 -- for the caller to judge
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
