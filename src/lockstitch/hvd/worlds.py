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

from lockstitch.board import BoardClient, Over
from lockstitch.board.client import REACHED_AT
from lockstitch.collectives import call_off, open_session
from lockstitch.errors import BoardLostError
from lockstitch.hvd.environment import options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.board import Place as BoardPlace
    from lockstitch.board import Update
    from lockstitch.collectives import Session

_log = logging.getLogger(__name__)

_ATTEMPTS = 5


class Launcher:
    """What the launcher has to say to this process, if it was started by one that says anything."""

    def __init__(self) -> None:
        self._board: BoardClient | None = None
        self._is_opening = threading.Event()
        self._listeners: list[Callable[[Update], None]] = []
        os.register_at_fork(after_in_child=self._listeners.clear)

    def board(self) -> BoardClient | None:
        """The board, where the environment names one."""
        if self._board is None:
            self._board = BoardClient.from_environment(os.environ)
            if self._board is not None:
                self._board.on_update = self._tell
                self._board.on_void = self._call_off
        return self._board

    def is_first_world(self) -> bool:
        """Whether no ranks have met before those of now."""
        board = self.board()
        return board is None or board.place is None or board.place.generation == 1

    def listen(self, listener: Callable[[Update], None]) -> None:
        """Calls `listener` for each update, from the board's thread; at once for the one that the
        world of now does not account for, if any."""
        self._listeners.append(listener)
        self.remind(listener)

    def remind(self, listener: Callable[[Update], None]) -> None:
        """Tells the listener what it may have missed."""
        board = self.board()
        if board is not None and board.last_update is not None:
            listener(board.last_update)

    def forget(self, listener: Callable[[Update], None]) -> None:
        """Ends `listen`."""
        self._listeners.remove(listener)

    def open(self, board: BoardClient) -> Session:
        """This process's session in the next world that it has a place in. Where there will be
        none any more, the process has nothing left to do: raises `SystemExit`."""
        options = replace(options_of(os.environ), address=os.environ.get(REACHED_AT))
        for attempt in range(1, _ATTEMPTS + 1):
            self._is_opening.set()
            try:
                with _held_port() as port:
                    answer = board.next_place(port)
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

    # ------------------------------------------------------------ in the board's thread

    def _tell(self, update: Update) -> None:
        for listener in list(self._listeners):
            listener(update)

    def _call_off(self, place: BoardPlace) -> None:
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
