"""An inventory of what this process holds: threads, child processes, sockets and pipes, shared
memory, workers, and what these keep for others.

Threads are asked of Python, descriptors, memory and children read from /proc where there is one,
references and contexts asked of the workers. Two inventories compared say what was left behind in
between:

    with no_leaks():
        with LocalCluster(2) as cluster:
            ...
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING

from lockstitch.attach.presence import PRESENCE
from lockstitch.autograd.service import AutogradService
from lockstitch.devices.guard import GUARD_THREAD
from lockstitch.memory import mapping
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.worker import living_workers
from lockstitch.testing.time_limits import ActiveTimeLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

# Descriptors that matter: what talks to somebody. Plain files come and go with the tools around us.
_TALKING = ("socket:", "pipe:", "anon_inode:", "/memfd:")
# Most of what ends by itself takes a moment only.
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.02


@contextlib.contextmanager
def no_leaks(timeout_seconds: float = 5.0) -> Iterator[None]:
    """Raises `AssertionError` if the block leaves something behind, and says what: threads, child
    processes, sockets and pipes, memory shared with other workers, workers that were not closed;
    and of workers that live on, values that others hold references to, and autograd contexts.

    What ends by itself within `timeout_seconds` (a thread on its way out, a reference that waits
    for the garbage collector) is no leak. An error of the block itself passes through unchanged.
    """
    before = Inventory.take()
    yield
    left = before.wait_until_nothing_new(timeout_seconds)
    if left:
        raise AssertionError("left behind:\n  " + "\n  ".join(left))


@dataclass(frozen=True)
class Inventory:
    """What the process holds at a moment: a name for each thing, by a key that tells two of the
    same name apart."""

    things: dict[object, str]

    @classmethod
    def take(cls) -> Inventory:
        """Takes the inventory of now."""
        return cls(_threads() | _children() | _descriptors() | _segments() | _workers())

    def wait_until_nothing_new(self, timeout_seconds: float) -> list[str]:
        """Returns the names of what is held now and was not then, once there is none or time is
        over."""
        time_limit = ActiveTimeLimit(timeout_seconds)
        never, seconds = threading.Event(), _FIRST_PAUSE_SECONDS
        while new := self._new():
            if time_limit.is_over():
                return sorted(new)
            gc.collect()
            never.wait(seconds)
            seconds = min(2 * seconds, _LONGEST_PAUSE_SECONDS)
        return []

    def _new(self) -> list[str]:
        now = Inventory.take().things
        return [name for key, name in now.items() if key not in self.things]


def _threads() -> dict[object, str]:
    # A worker starts threads as it needs them, named after itself: they end with it.
    own = tuple(f"{worker.name}-" for worker in living_workers())
    return {
        ("thread", thread.ident): f"thread {thread.name!r}" + (" (daemon)" * thread.daemon)
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)  # a foreign thread that once ran Python
        and not thread.name.startswith(own)
        and thread.name != GUARD_THREAD  # stays for good
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
    # Both stay for good.
    kept = (getattr(resource_tracker._resource_tracker, "_fd", None), PRESENCE.descriptor)
    held: dict[object, str] = {}
    for name in _names(Path("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith(_TALKING) and int(name) not in kept:
            held["descriptor", int(name), target] = f"descriptor {name} -> {target}"
    return held


def _segments() -> dict[object, str]:
    # While a worker lives it keeps segments for the next messages: they end with it.
    if living_workers():
        return {}
    file = f"/memfd:{mapping.NAME}"
    text = _read(Path("/proc/self/maps"))
    if file not in text:  # of thousands of lines few are about memory that is shared, or none
        return {}
    places = [line.split() for line in text.splitlines() if file in line]
    ranges = [place[0] for place in places if place[5] == file]
    return {("segment", each): f"shared memory at {each}" for each in ranges}


def _workers() -> dict[object, str]:
    held: dict[object, str] = {}
    for worker in living_workers():
        held["worker", id(worker)] = f"not closed: {worker!r}"
        for service in worker.services():
            if isinstance(service, ReferenceService):
                held |= {("reference", id(worker), line): line for line in service.leaks()}
            elif isinstance(service, AutogradService):
                held |= {
                    ("context", id(worker), context.id): f"not released by {worker.name!r}: "
                    f"autograd context {context.id}"
                    for context in service.contexts
                }
    return held


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it ended meanwhile
        return ""
