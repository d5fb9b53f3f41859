"""The way into a session where the launcher lets workers come and go: with the ranks that it names
now.

A world may end before all of its ranks have met, since one has died. Those who
wait are told, call the meeting off, and ask for a place in the next world.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from lockstitch.collectives import call_off, open_session
from lockstitch.errors import BoardLostError
from lockstitch.hvd.environment import options_of
from lockstitch.launcher_link import LauncherClient, Over
from lockstitch.launcher_link.client import REACHED_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.collectives import Session
    from lockstitch.launcher_link import RankAssignment, Update

_log = logging.getLogger(__name__)

_ATTEMPTS = 5


class Launcher:
    """What the launcher has to say to this process, if it was started by one that says anything."""

    def __init__(self) -> None:
        self._link: LauncherClient | None = None
        self._is_opening = threading.Event()
        self._listeners: list[Callable[[Update], None]] = []
        os.register_at_fork(after_in_child=self._listeners.clear)

    def link(self) -> LauncherClient | None:
        """The link, where the environment names one."""
        if self._link is None:
            self._link = LauncherClient.from_environment(os.environ)
            if self._link is not None:
                self._link.on_update = self._tell
                self._link.on_void = self._call_off
        return self._link

    def is_first_world(self) -> bool:
        """Whether no ranks have met before those of now."""
        link = self.link()
        return link is None or link.place is None or link.place.generation == 1

    def listen(self, listener: Callable[[Update], None]) -> None:
        """Calls `listener` for each update, from the link's thread; at once for the one that the
        world of now does not account for, if any."""
        self._listeners.append(listener)
        self.remind(listener)

    def remind(self, listener: Callable[[Update], None]) -> None:
        """Tells the listener what it may have missed."""
        link = self.link()
        if link is not None and link.last_update is not None:
            listener(link.last_update)

    def forget(self, listener: Callable[[Update], None]) -> None:
        """Ends `listen`."""
        self._listeners.remove(listener)

    def open(self, link: LauncherClient) -> Session:
        """This process's session in the next world that it has a place in. Where there will be
        none any more, the process has nothing left to do: raises `SystemExit`."""
        options = replace(options_of(os.environ), address=os.environ.get(REACHED_AT))
        for attempt in range(1, _ATTEMPTS + 1):
            self._is_opening.set()
            try:
                with _held_port() as port:
                    answer = link.next_place(port)
                    if isinstance(answer, Over):
                        _log.info("no place for this worker: %s", answer.reason)
                        raise SystemExit(0)
                    session = open_session(answer.rank, answer.size, answer.store, options)
                    # Where programs of the original look.
                    os.environ["HOROVOD_RANK"] = str(answer.rank)
                    os.environ["HOROVOD_SIZE"] = str(answer.size)
                    return session
            except BoardLostError:
                raise
            except RuntimeError:
                if attempt == _ATTEMPTS:
                    raise
                _log.info("a world ended before its ranks had met")
            finally:
                self._is_opening.clear()
        raise AssertionError("unreachable")

    # ------------------------------------------------------------ in the link's thread

    def _tell(self, update: Update) -> None:
        for listener in list(self._listeners):
            listener(update)

    def _call_off(self, place: RankAssignment) -> None:
        if self._is_opening.is_set():
            with contextlib.suppress(RuntimeError):  # the store has gone with the launcher
                call_off(place.size, place.store)


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """A port that is kept from others, though this process may listen there: a socket is bound to
    it, and does not listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


LAUNCHER = Launcher()
