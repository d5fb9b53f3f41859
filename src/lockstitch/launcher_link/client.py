"""The worker's end of the link to the launcher.

A thread reads what the launcher says, for as long as the worker lives: a rank in the next world is
waited for, updates about workers are passed on at once to whoever listens.
"""

from __future__ import annotations

import atexit
import random
import socket
import threading
from typing import TYPE_CHECKING, Literal

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import BoardLostError, HandshakeError, RemoteProtocolError
from lockstitch.forks import abandon_in_child
from lockstitch.launcher_link.messages import (
    CODEC,
    LAUNCHER,
    MOST_BYTES,
    Message,
    Over,
    RankAssignment,
    Ready,
    StoreReply,
    StoreRequest,
    Update,
    Void,
    worker_info,
)
from lockstitch.link.addresses import hint
from lockstitch.link.line import call
from lockstitch.link.pulse import DEFAULT_SECONDS, Pulse, heartbeat_seconds
from lockstitch.link.sockets import connect
from lockstitch.trust import find_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lockstitch.link.line import Line
    from lockstitch.link.sockets import SocketStream
    from lockstitch.trust import Secret

ADDRESS, WORKER = "LOCKSTITCH_BOARD", "LOCKSTITCH_WORKER"
"""The environment variables with the launcher's address (`unix:PATH` or `tcp:HOST:PORT`) and the
worker's number."""
REACHED_AT = "LOCKSTITCH_REACHED_AT"
"""The environment variable with the address at which ranks of other hosts reach this worker's
host."""
PURPOSE = "board"
"""The purpose of the secret that is derived from the job's."""

_CONNECT_SECONDS = 60.0
_PAUSE_SECONDS = (0.02, 0.5)


class LauncherClient:
    """A worker's connection to the launcher. `on_update` is called in the reading thread for each
    update; `on_void` when a world is void before all of its ranks have met. `heartbeat`: after how
    many seconds of silence the launcher passes for gone; 0: never."""

    def __init__(
        self, address: str, secret: Secret, worker: int, heartbeat: float = DEFAULT_SECONDS
    ) -> None:
        self.on_update: Callable[[Update], None] | None = None
        self.on_void: Callable[[RankAssignment], None] | None = None
        self.last_update: Update | None = None
        """The update that the rank given last does not account for, if any."""
        self._line = _call(address, secret, worker)
        self._pulse = Pulse(heartbeat, SYSTEM_CLOCK)
        self._pulse.add(self._line)
        self._is_told = threading.Condition()
        self._answer: RankAssignment | Over | None = None
        self._place: RankAssignment | None = None
        self._failure: Exception | None = None
        self._replies: dict[int, StoreReply | None] = {}
        """By the number of the request; None while it is waited for."""
        self._requests = 0
        self._thread = threading.Thread(
            target=self._run, name="lockstitch launcher link", daemon=True
        )
        self._thread.start()
        # The way out of a program may take longer than one may be silent.
        atexit.register(self._line.close)
        abandon_in_child(self._line.stream)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LauncherClient | None:
        """Connects to the launcher that the environment names; None where it names none."""
        address = environment.get(ADDRESS)
        if address is None:
            return None
        secret = find_secret(None, None, environment)
        if secret is None:
            raise BoardLostError("the environment names a board, but not the job's secret")
        heartbeat = heartbeat_seconds(None, environment)
        return cls(address, secret.of(PURPOSE), int(environment[WORKER]), heartbeat)

    def __repr__(self) -> str:
        return f"<LauncherClient · {self._failure or self._place or 'no rank yet'}>"

    @property
    def place(self) -> RankAssignment | None:
        """The rank that was given last; None before the first."""
        return self._place

    def next_place(self, port: int = 0) -> RankAssignment | Over:
        """Asks for a rank in the next world and waits for it; the launcher decides how long. To be
        called when this worker is in no world. `port`: see `Ready`. Raises `BoardLostError`."""
        with self._is_told:
            self._answer = None
            self._check()
            self._send(Ready(port))
            while True:
                answer: RankAssignment | Over | None = self._answer
                if answer is not None:
                    return answer
                self._check()
                self._is_told.wait()

    def ask_store(
        self,
        operation: Literal["get", "set", "compare_set", "add", "delete"],
        key: str,
        value: str = "",
        expected: str = "",
    ) -> str | None:
        """Has the launcher do something with a key of the job's store (`values.Values.answer`);
        returns the value in its reply. From any thread. Raises `BoardLostError`."""
        with self._is_told:
            self._check()
            self._requests += 1
            number = self._requests
            self._replies[number] = None
            try:
                self._send(StoreRequest(number, operation, key, value, expected))
                while (reply := self._replies[number]) is None:
                    self._check()
                    self._is_told.wait()
                return reply.value
            finally:
                del self._replies[number]

    def close(self) -> None:
        """Hangs up; harmless when repeated."""
        atexit.unregister(self._line.close)
        self._line.close()
        self._thread.join()

    # ------------------------------------------------------------ inside

    def _send(self, message: Message) -> None:
        try:
            self._line.send(CODEC.encode(message))
        except OSError as error:
            raise BoardLostError(f"the launcher is gone: {error}") from error

    def _check(self) -> None:
        if self._failure is not None:
            raise BoardLostError(f"the launcher is gone: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            while True:
                for record in self._line.listen(self._pulse):
                    self._take(CODEC.decode(record))
        except (OSError, RemoteProtocolError) as error:
            self._line.close()
            self._end(error)

    def _take(self, message: Message) -> None:
        if isinstance(message, RankAssignment | Over):
            with self._is_told:
                self._answer = message
                if isinstance(message, RankAssignment):
                    self._place = message
                    self.last_update = None
                self._is_told.notify_all()
        elif isinstance(message, StoreReply):
            with self._is_told:
                if message.number in self._replies:
                    self._replies[message.number] = message
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


def _call(address: str, secret: Secret, worker: int) -> Line[SocketStream]:
    """Connects to the launcher; returns the line to it. Where many workers come at once it may not
    take all of them in: then tries again. Raises `BoardLostError`."""
    deadline = SYSTEM_CLOCK.now() + _CONNECT_SECONDS
    while True:
        try:
            return _call_once(address, secret, worker, deadline - SYSTEM_CLOCK.now())
        except HandshakeError as error:
            raise BoardLostError(
                f"the launcher at {address} does not let worker {worker} in: {error}"
            ) from error
        except OSError as error:
            is_busy = isinstance(error, ConnectionResetError | BlockingIOError | BrokenPipeError)
            if not is_busy or SYSTEM_CLOCK.now() >= deadline:
                raise BoardLostError(
                    f"the launcher cannot be reached at {address} from {socket.gethostname()}: "
                    f"{error}; {_hint(address)}"
                ) from error
        SYSTEM_CLOCK.wait(threading.Event(), random.uniform(*_PAUSE_SECONDS))


def _call_once(address: str, secret: Secret, worker: int, seconds: float) -> Line[SocketStream]:
    return call(
        connect(address, seconds),
        worker_info(worker),
        LAUNCHER.worker,
        secret,
        MOST_BYTES,
        timeout_seconds=seconds,
    )


def _hint(address: str) -> str:
    return "has it ended?" if address.startswith("unix:") else hint(address)
