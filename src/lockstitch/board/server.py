"""The launcher's end of the board, for a loop that sleeps in a selector.

It listens on a unix socket in a folder that only this user may enter, or, for workers of other
hosts, on a TCP port. A connection says which worker it belongs to with its first message; before
that it has proved nothing and is worth nothing: there are never many of these.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.board.line import CHALLENGE_SIZE, Line
from lockstitch.board.messages import Hello, Message
from lockstitch.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_STRANGERS = 64


@dataclass(slots=True)
class _Guest:
    """One connection."""

    socket: socket.socket
    line: Line
    worker: int | None = None


class BoardServer:
    """See the module. Entries of `selector` have as data what is to be called when they are
    readable. `hear(worker, message)` is called for what workers say."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        secret: bytes,
        hear: Callable[[int, Message], None],
        address: str,
    ) -> None:
        self._selector = selector
        self._secret = secret
        self._hear = hear
        self._workers: dict[int, _Guest] = {}
        self._strangers: list[_Guest] = []
        self._listeners: list[socket.socket] = []
        self.address = self.listen(address)
        """What workers are told: `unix:PATH` or `tcp:HOST:PORT`."""

    def __repr__(self) -> str:
        return f"<BoardServer at {self.address} · {len(self._workers)} workers>"

    def listen(self, address: str) -> str:
        """Listens there too; returns the address with the port that was free, where it was 0."""
        listener = _listen(address)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        return _address_of(listener, address)

    def tell(self, worker: int, message: Message) -> None:
        """Says something to a worker; nothing where it is gone."""
        guest = self._workers.get(worker)
        if guest is not None:
            try:
                guest.socket.send(guest.line.send(message))
            except OSError:  # also when it has not read for long: it is as good as gone
                self._hang_up(guest)

    def close(self) -> None:
        """Hangs up on everybody; harmless when repeated."""
        for guest in [*self._workers.values(), *self._strangers]:
            self._hang_up(guest)
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        self._listeners.clear()

    # ------------------------------------------------------------ inside

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it has gone again
            return
        connection.setblocking(False)
        challenge = secrets.token_bytes(CHALLENGE_SIZE)
        guest = _Guest(connection, Line(self._secret, challenge, is_launcher=True))
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(guest))
        self._strangers.append(guest)
        with contextlib.suppress(OSError):  # seen when it is read
            connection.send(challenge)
        if len(self._strangers) > _MOST_STRANGERS:
            self._hang_up(self._strangers[0])

    def _read(self, guest: _Guest) -> None:
        try:
            data = guest.socket.recv(1 << 16)
            heard = guest.line.receive(data)
        except BlockingIOError:
            return
        except (OSError, RemoteProtocolError):
            data, heard = b"", []
        for message in heard:
            if isinstance(message, Hello):
                if guest in self._strangers:
                    self._strangers.remove(guest)
                guest.worker = message.worker
                self._workers[message.worker] = guest
            elif guest.worker is not None:
                self._hear(guest.worker, message)
        if not data:
            self._hang_up(guest)

    def _hang_up(self, guest: _Guest) -> None:
        if guest.socket.fileno() < 0:
            return
        self._selector.unregister(guest.socket)
        guest.socket.close()
        if guest in self._strangers:
            self._strangers.remove(guest)
        if guest.worker is not None and self._workers.get(guest.worker) is guest:
            del self._workers[guest.worker]


def _listen(address: str) -> socket.socket:
    family, _, where = address.partition(":")
    if family == "unix":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(where)
        listener.listen(128)
    else:
        host, _, port = where.rpartition(":")
        listener = socket.create_server((host, int(port)), backlog=128)
    listener.setblocking(False)
    return listener


def _address_of(listener: socket.socket, address: str) -> str:
    if address.startswith("unix:"):
        return address
    host, _, _ = address.removeprefix("tcp:").rpartition(":")
    return f"tcp:{host}:{listener.getsockname()[1]}"
