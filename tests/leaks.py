"""What this process holds at a moment: threads, child processes, sockets and pipes, workers.

Threads are asked of Python, descriptors and children read from /proc where there is one. A worker
that was not closed keeps references and contexts alive, and says so itself. Two inventories
compared say what a test left behind.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

# Descriptors that matter: what talks to somebody. Plain files come and go with the tools around us.
_TALKING = ("socket:", "pipe:", "anon_inode:", "/memfd:")


@dataclass(frozen=True)
class Inventory:
    """A name for each thing held, by a key that tells two of the same name apart."""

    things: dict[object, str]

    @classmethod
    def take(cls) -> Inventory:
        return cls(_threads() | _children() | _descriptors() | _workers())

    def wait_until_nothing_new(self, timeout_seconds: float) -> list[str]:
        """The names of what is held now and was not then, once there is none or time is over."""
        deadline = time.monotonic() + timeout_seconds
        pause = threading.Event()
        while new := self._new():
            if time.monotonic() > deadline:
                return sorted(new)
            gc.collect()
            pause.wait(0.02)
        return []

    def _new(self) -> list[str]:
        now = Inventory.take().things
        return [name for key, name in now.items() if key not in self.things]


def _threads() -> dict[object, str]:
    return {
        ("thread", thread.ident): f"thread {thread.name!r}" + (" (daemon)" * thread.daemon)
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)  # a foreign thread that once ran Python
    }


def _children() -> dict[object, str]:
    # multiprocessing starts one tracker of its resources and keeps it to the end.
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    pids = {
        int(pid)
        for children in Path("/proc/self/task").glob("*/children")
        for pid in _read(children).split()
    }
    return {("process", pid): _describe_process(pid) for pid in pids - {tracker}}


def _describe_process(pid: int) -> str:
    command = _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()
    return f"child process {pid} ({command or 'a zombie: nobody waited for it'})"


def _descriptors() -> dict[object, str]:
    tracker = getattr(resource_tracker._resource_tracker, "_fd", None)
    held: dict[object, str] = {}
    for name in _names(Path("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith(_TALKING) and int(name) != tracker:
            held["descriptor", int(name), target] = f"descriptor {name} -> {target}"
    return held


def _workers() -> dict[object, str]:
    # Looked up only if a test imported it, so that tests of small parts stay independent of it.
    module = sys.modules.get("lockstitch.runtime.worker")
    alive = list(getattr(module, "_alive", ()))
    return {("worker", id(worker)): f"not closed: {worker!r}" for worker in alive}


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it ended meanwhile
        return ""
