"""The launcher's end of the links to its workers, for a loop that sleeps in a selector.

It listens on a unix socket in a folder that only this user may enter, or, for workers of other
hosts, on a TCP port. Who connects says in its greeting which worker it is, and proves to have the
job's secret; until then it is a guest at the door (`link.door`).
"""

from __future__ import annotations

import contextlib
import os
import selectors
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from lockstitch.clock import SYSTEM_CLOCK, earliest, seconds_until
from lockstitch.errors import RemoteProtocolError
from lockstitch.launcher_link.messages import CODEC, LAUNCHER, MOST_BYTES
from lockstitch.link.door import Door, Guest
from lockstitch.link.handshake import ListenerHandshake, why_other_version
from lockstitch.link.ports import find_ports
from lockstitch.link.pulse import Pulse, SilenceError
from lockstitch.link.sockets import SocketListener, SocketStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.clock import Clock
    from lockstitch.ids import WorkerInfo
    from lockstitch.link.codec import Codec
    from lockstitch.link.line import Line
    from lockstitch.trust import Secret

_MOST_GUESTS = 4096
_GUEST_SECONDS = 30.0
_PAUSE_SECONDS = 0.1


class LauncherServer:
    """Listens for workers and talks to those that have come. Entries of `selector` have as data
    what is to be called when they are readable. `hear(worker, message)` is called for each message
    of a worker, `on_lost(worker)` when it has hung up, and `note_silence(worker, why)` for one that
    shows no sign of life for `heartbeat` seconds (0: never asked). At most `most_guests` may be
    about to prove themselves.

    A subclass may speak another language: as whom it greets, in which messages, and how long these
    are; and where it does so in threads of its own, it may wait for those who read slowly."""

    me: ClassVar[WorkerInfo] = LAUNCHER
    codec: ClassVar[Codec[Any]] = CODEC
    most_bytes: ClassVar[int] = MOST_BYTES
    patience_seconds: ClassVar[float] = 0.0

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        selector: selectors.BaseSelector,
        secret: Secret,
        hear: Callable[[int, Any], None],
        address: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        heartbeat: float = 0.0,
        note_silence: Callable[[int, str], None] = lambda _worker, _why: None,
        most_guests: int = _MOST_GUESTS,
    ) -> None:
        self._pulse = Pulse(heartbeat, clock)
        self._note_silence = note_silence
        self._selector = selector
        self._secret = secret
        self._hear = hear
        self.on_lost: Callable[[int], None] | None = None
        self._lines: dict[int, Line[SocketStream]] = {}
        """By worker."""
        self._door: Door[Guest[SocketStream]] = Door(
            clock, most_guests, _GUEST_SECONDS, lambda guest: self._hang_up(guest.stream)
        )
        self._clock = clock
        self._listeners: list[SocketListener] = []
        self._reopens_at: float | None = None
        """When they accept again, where they do not."""
        self.address = self.listen(address)
        """What workers are told: `unix:PATH` or `tcp:HOST:PORT`."""

    def __repr__(self) -> str:
        return f"<LauncherServer at {self.address} · {len(self._lines)} workers>"

    def listen(self, address: str) -> str:
        """Listens there too; returns the address with the port that was free, where it was 0."""
        listener = SocketListener(address, find_ports(None, os.environ))
        self._listeners.append(listener)
        if self._reopens_at is None:
            self._watch(listener, partial(self._accept, listener))
        return listener.address

    @property
    def descriptor(self) -> int:
        """That at which it has listened from the beginning."""
        return self._listeners[0].fileno() if self._listeners else -1

    def tell(self, worker: int, message: Any) -> None:
        """Sends a message to a worker; does nothing where the worker is gone."""
        line = self._lines.get(worker)
        if line is not None:
            try:
                line.send(self.codec.encode(message))
            except OSError:  # also when it has not read for long: it is as good as gone
                self._lose(worker, line)

    def seconds_to_next(self) -> float | None:
        """How long until `pass_time` wants to be called; None for never."""
        reopens = seconds_until(self._reopens_at, self._clock)
        return earliest(self._door.seconds_to_next(), self._pulse.seconds_to_next(), reopens)

    def pass_time(self) -> None:
        """Hangs up on those who do not prove themselves in time, or fall silent."""
        self._door.pass_time()
        if self._reopens_at is not None and self._clock.now() >= self._reopens_at:
            self._reopens_at = None
            for listener in self._listeners:
                self._watch(listener, partial(self._accept, listener))
        lost = dict(self._pulse.pass_time())
        if not lost:
            return
        for worker, line in [each for each in self._lines.items() if each[1] in lost]:
            self._lose(worker, line)
            if isinstance(lost[line], SilenceError):
                self._note_silence(worker, str(lost[line]))

    def close(self) -> None:
        """Hangs up on everybody; harmless when repeated."""
        self.on_lost = None
        self._door.close()
        for worker, line in list(self._lines.items()):
            self._lose(worker, line)
        for listener in self._listeners:
            self._hang_up(listener)
        self._listeners.clear()

    def abandon(self) -> None:
        """A forked child lets go of all sockets; what they are for is its parent's."""
        for listener in self._listeners:
            listener.close()
        for line in self._lines.values():
            line.stream.abandon()

    # ------------------------------------------------------------ inside

    def _accept(self, listener: SocketListener) -> None:
        try:
            stream = listener.accept()
        except BlockingIOError:  # it has gone again
            return
        except OSError:  # this process can open no more files
            self._door.make_room()
            self._pause()
            return
        guest = Guest(stream, ListenerHandshake(self.me, self._secret, why_other_version))
        self._watch(stream, partial(self._listen, guest))
        self._door.admit(guest)

    def _pause(self, seconds: float = _PAUSE_SECONDS) -> None:
        """Accepts nobody for a while: the selector would tell again and again who waits."""
        if self._reopens_at is None:
            self._reopens_at = self._clock.now() + seconds
            for listener in self._listeners:
                self._selector.unregister(listener)

    def _listen(self, guest: Guest[SocketStream]) -> None:
        refusal = guest.listen()
        if refusal:
            self._door.turn_away(guest, refusal)
        elif refusal is not None and self._door.let_in(guest):
            self._let_in(guest)

    def _let_in(self, guest: Guest[SocketStream]) -> None:
        assert guest.handshake.caller is not None
        worker = guest.handshake.caller.id
        try:
            line = guest.line(self.most_bytes)
        except OSError:
            self._hang_up(guest.stream)
            return
        line.stream.patience_seconds = self.patience_seconds
        self._lines[worker] = line
        self._pulse.add(line)
        self._selector.modify(line.stream, selectors.EVENT_READ, partial(self._read, worker, line))

    def _read(self, worker: int, line: Line[SocketStream]) -> None:
        messages: list[Any] = []
        is_lost = False
        try:
            messages.extend(self.codec.decode(record) for record in line.read(0))
        except BlockingIOError:
            return
        except (OSError, RemoteProtocolError):
            is_lost = True  # what came whole before is heard all the same
        for message in messages:  # what this may raise says nothing of the line
            self._hear(worker, message)
        if is_lost:
            self._lose(worker, line)

    def _lose(self, worker: int, line: Line[SocketStream]) -> None:
        if self._lines.get(worker) is line:
            del self._lines[worker]
            if self.on_lost is not None:
                self.on_lost(worker)
        self._pulse.discard(line)
        self._hang_up(line.stream)

    def _watch(self, source: SocketStream | SocketListener, when: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, when)

    def _hang_up(self, source: SocketStream | SocketListener) -> None:
        # That has happened before: of one that is closed the selector says so by a ValueError.
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(source)
        source.close()
