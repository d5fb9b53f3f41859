"""Waiting for many sockets at once, each armed for one event, with epoll.

One-shot arming is what lets a connection change hands without waking anybody: a thread that wants
to read it alone leaves it unarmed, and arming it again gives it back (half a microsecond).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING

from lockstitch.forks import abandon_in_child
from lockstitch.transport.stream import SocketEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.transport.base import Connection, Pollable


class EpollPoller:
    """A `Poller` over stream connections and listeners.

    It is meant for a background thread: an interrupt raised in `wait` may lose what was ready.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        # Looking at it from outside takes nothing out of it.
        self._outside = select.epoll()
        self._outside.register(self._epoll, select.EPOLLIN)
        self._descriptors: dict[SocketEnd, int] = {}
        self._ends: dict[int, SocketEnd] = {}
        self._ready_already: list[SocketEnd] = []  # armed, but epoll would not tell
        self._lock = threading.Lock()
        self._is_waiting = False
        self._closed = False
        abandon_in_child(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._descriptors)} watched"
        return f"<EpollPoller · {state}>"

    def add(self, pollable: Pollable) -> None:
        """Begins to watch, unarmed; its descriptor stays open until `remove`."""
        end = _socket_end(pollable)
        with self._lock:
            if end in self._descriptors or self._closed:
                return
            descriptor = end.watch()
            self._descriptors[end] = descriptor
            if descriptor >= 0:
                self._ends[descriptor] = end

    def arm(self, pollable: Pollable) -> None:
        """Asks to be told once when it is readable; nothing happens if it has been removed."""
        self._ask(_socket_end(pollable), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT)

    def watch_end(self, connection: Connection) -> None:
        """Asks to be told once when the other end is gone."""
        self._ask(_socket_end(connection), select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _ask(self, end: SocketEnd, events: int) -> None:
        with self._lock:
            descriptor = self._descriptors.get(end)
            if descriptor is None:
                return
            if descriptor < 0 or (events & select.EPOLLIN and end.has_left_over()):
                self._ready_already.append(end)
                os.eventfd_write(self._wake, 1)
                return
            try:
                self._epoll.modify(descriptor, events)
            except FileNotFoundError:
                # Not before the first arming: epoll tells of hang-ups even where nothing is asked.
                self._epoll.register(descriptor, events)

    def remove(self, pollable: Pollable) -> None:
        """Forgets it; harmless when unknown."""
        end = _socket_end(pollable)
        with self._lock:
            descriptor = self._descriptors.pop(end, None)
            if descriptor is None:
                return
            if descriptor >= 0:
                del self._ends[descriptor]
                with contextlib.suppress(FileNotFoundError):  # never armed
                    self._epoll.unregister(descriptor)
        end.unwatch()

    def wait(self, timeout_seconds: float | None) -> Sequence[Pollable]:
        """Blocks until something armed is readable, `wake` is called, or the time is over."""
        with self._lock:
            if self._closed:
                return ()
            self._is_waiting = True
        try:
            events = self._epoll.poll(timeout_seconds)
        finally:
            self._stop_waiting()
        return self._ready(events)

    def has_ready(self) -> bool:
        """Whether something armed is readable, or `wake` was called; looks without waiting."""
        try:
            return bool(self._outside.poll(0))
        except ValueError:  # closed meanwhile
            return False

    def wake(self) -> None:
        """Makes the current, or else the next, `wait` return."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Ends it, and a `wait` in progress; what was watched is let go, not closed."""
        with self._lock:
            if self._closed:
                return
            os.eventfd_write(self._wake, 1)
            self._closed = True
            watched = list(self._descriptors)
            self._descriptors.clear()
            self._ends.clear()
            if not self._is_waiting:
                self._give_back()
        for end in watched:
            end.unwatch()

    def abandon(self) -> None:
        """Closes a forked child's copies."""
        if not self._epoll.closed:
            self._closed = True
            self._give_back()

    def _stop_waiting(self) -> None:
        with self._lock:
            self._is_waiting = False
            if self._closed:
                self._give_back()

    def _ready(self, events: list[tuple[int, int]]) -> Sequence[Pollable]:
        with self._lock:
            if self._closed:
                return ()
            ready = [self._ends[fd] for fd, _ in events if fd in self._ends]
            if any(fd == self._wake for fd, _ in events):
                os.eventfd_read(self._wake)
                already, self._ready_already = self._ready_already, []
                ready += [end for end in already if end in self._descriptors]
            return ready

    def _give_back(self) -> None:
        self._outside.close()
        self._epoll.close()
        os.close(self._wake)


def _socket_end(pollable: Pollable) -> SocketEnd:
    if not isinstance(pollable, SocketEnd):
        raise TypeError(f"{pollable!r} is not a socket")
    return pollable
