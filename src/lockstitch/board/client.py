"""The worker's end of the board.

A thread reads what the launcher says, as long as the worker lives: a place in the next world is
waited for, news of workers are passed on to whoever listens, at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING

from lockstitch.board.line import CHALLENGE_SIZE, Line
from lockstitch.board.messages import Hello, Message, Over, Place, Ready, Update, Void
from lockstitch.errors import BoardLostError, RemoteProtocolError
from lockstitch.trust import find_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ADDRESS, WORKER = "LOCKSTITCH_BOARD", "LOCKSTITCH_WORKER"
"""The environment's names for where the board is (`unix:PATH` or `tcp:HOST:PORT`), and for the
worker's number."""
REACHED_AT = "LOCKSTITCH_REACHED_AT"
"""The environment's name for where ranks of other hosts reach this worker's host."""
PURPOSE = "board"
"""Of the key that is derived from the job's secret."""

_CONNECT_SECONDS = 60.0


class BoardClient:
    """See the module. `on_update` is called in the reading thread for each update; `on_void` when
    a world is void before all of its ranks have met."""

    def __init__(self, address: str, secret: bytes, worker: int) -> None:
        self.on_update: Callable[[Update], None] | None = None
        self.on_void: Callable[[Place], None] | None = None
        self.last_update: Update | None = None
        """The update that the place given last does not account for, if any."""
        self._socket = _connect(address)
        self._is_told = threading.Condition()
        self._answer: Place | Over | None = None
        self._place: Place | None = None
        self._failure: Exception | None = None
        try:
            challenge = self._read_challenge()
            self._line = Line(secret, challenge, is_launcher=False)
            self._send(Hello(worker))
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._run, name="lockstitch board", daemon=True)
        self._thread.start()
        close_in_child(self._socket)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BoardClient | None:
        """The board that the launcher has named; None where there is none."""
        address = environment.get(ADDRESS)
        if address is None:
            return None
        secret = find_secret(None, None, environment)
        if secret is None:
            raise BoardLostError("the environment names a board, but not the job's secret")
        return cls(address, secret.derive(PURPOSE), int(environment[WORKER]))

    def __repr__(self) -> str:
        return f"<BoardClient · {self._failure or self._place or 'no place yet'}>"

    @property
    def place(self) -> Place | None:
        """The one that was given last."""
        return self._place

    def next_place(self, port: int = 0) -> Place | Over:
        """Asks for a place in the next world and waits for it; the launcher decides how long. To
        be called when this worker is in no world. `port`: see `Ready`. Raises `BoardLostError`."""
        with self._is_told:
            self._answer = None
            self._check()
            try:
                self._send(Ready(port))
            except OSError as error:
                raise BoardLostError(f"the launcher is gone: {error}") from error
            while True:
                answer: Place | Over | None = self._answer
                if answer is not None:
                    return answer
                self._check()
                self._is_told.wait()

    def close(self) -> None:
        """Hangs up; harmless when repeated."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    # ------------------------------------------------------------ inside

    def _check(self) -> None:
        if self._failure is not None:
            raise BoardLostError(f"the launcher is gone: {self._failure}") from self._failure

    def _read_challenge(self) -> bytes:
        challenge = b""
        while len(challenge) < CHALLENGE_SIZE:
            data = self._socket.recv(CHALLENGE_SIZE - len(challenge))
            if not data:
                raise BoardLostError("the launcher has hung up without a word")
            challenge += data
        return challenge

    def _send(self, message: Message) -> None:
        self._socket.sendall(self._line.send(message))

    def _run(self) -> None:
        try:
            while data := self._socket.recv(1 << 16):
                for message in self._line.receive(data):
                    self._hear(message)
            self._end(ConnectionError("it has hung up"))
        except (OSError, RemoteProtocolError) as error:
            self._end(error)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Place | Over):
            with self._is_told:
                self._answer = message
                if isinstance(message, Place):
                    self._place = message
                    self.last_update = None
                self._is_told.notify_all()
        elif isinstance(message, Update):
            self.last_update = message
            if self.on_update is not None:
                self.on_update(message)
        elif isinstance(message, Void):
            place = self._place
            if place is not None and place.generation == message.generation and self.on_void:
                self.on_void(place)

    def _end(self, error: Exception) -> None:
        with self._is_told:
            self._failure = error
            self._is_told.notify_all()


def close_in_child(line: socket.socket) -> None:
    """A forked child must not hold the line open: its end would not be seen."""
    reference = weakref.ref(line)

    def close() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.close()

    os.register_at_fork(after_in_child=close)


def _connect(address: str) -> socket.socket:
    family, _, where = address.partition(":")
    try:
        if family != "unix":
            host, _, port = where.rpartition(":")
            return socket.create_connection((host, int(port)), _CONNECT_SECONDS)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.settimeout(_CONNECT_SECONDS)
            line.connect(where)
        except BaseException:
            line.close()
            raise
    except OSError as error:
        raise BoardLostError(f"the launcher cannot be reached at {address}: {error}") from error
    return line
