"""What ranks do instead of coming.

While other ranks wait for an operation of a group that this one has not submitted, a thread of this
process writes into the group's store what this rank does: whom it waits for elsewhere, which
operation of the group was its last, and where its main thread is. Who waits reads that when it
warns of a stall or gives up. Nothing is written while all goes well.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from torch.distributed.distributed_c10d import PrefixStore

from lockstitch.rendezvous import another_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.distributed_c10d import Store

_LOOK_SECONDS: Final = 1.0
_READ_SECONDS: Final = 1.0


class Reports:
    """One rank's end of what the ranks of a group report to each other."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = PrefixStore("reports", another_client(store))
        self._rank = rank
        self._lock = threading.Lock()

    def post(self, text: str) -> None:
        """Says what this rank does, in the place of what it has said before."""
        at = time.strftime("%H:%M:%S")
        with self._lock, contextlib.suppress(RuntimeError):  # the store may have gone with rank 0
            self._store.set(str(self._rank), f"{text} (said at {at})")

    def read(self, ranks: Iterable[int]) -> list[str]:
        """Returns what these ranks have said last; nothing of those that have said nothing, and
        nothing at all where the store does not answer soon: its host may be cut off."""
        found: list[str] = []
        keys = [str(rank) for rank in ranks]
        reading = threading.Thread(
            target=self._read, args=(keys, found), name="lockstitch reads reports", daemon=True
        )
        reading.start()
        reading.join(_READ_SECONDS)
        return list(found)

    def _read(self, keys: list[str], found: list[str]) -> None:
        with self._lock, contextlib.suppress(RuntimeError):
            said = [self._store.get(key) for key in keys if self._store.check([key])]
            found += [bytes(each).decode(errors="replace") for each in said]


class Watched(Protocol):
    """A group."""

    def report(self) -> None:
        """Says what this rank does, if others wait for it."""
        ...


class Watch:
    """The thread that looks whether others wait for this process. It lives as long as there are
    groups."""

    def __init__(self, groups: Callable[[], list[Watched]]) -> None:
        self._groups = groups
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """There is a group; harmless when repeated."""
        with self._lock:
            if self._thread is None:
                self._end = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._end,), name="lockstitch reports", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        """There is none any more; harmless when repeated."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._end.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def forget(self) -> None:
        """A forked child has no such thread."""
        self._lock = threading.Lock()
        self._thread = None

    def _run(self, end: threading.Event) -> None:
        while not end.wait(_LOOK_SECONDS) and self._thread is threading.current_thread():
            # What goes wrong with a group is told to those who wait for its operations; and groups
            # may be made while one looks.
            with contextlib.suppress(Exception):
                for group in self._groups():
                    group.report()
