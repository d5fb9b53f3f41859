"""Moving the frames of an exchange over the connections to its other ranks, in one thread.

    ┌ i64 process set ┬ u32 exchange of the set ┬ u8 kind ┬ u32 chunk ┬ u32 bytes ┬ content ┐

Nothing here waits for one connection alone: what can leave leaves, what has come is taken in, each
into the memory where it is wanted, and only where nothing moves the thread sleeps, until a
connection can go on. Who sends for the next exchange is not read before that has begun. A frame
that went ahead of its order (`ahead`) has its own number in the place of the exchange's.
"""

from __future__ import annotations

import select
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from lockstitch.collectives.c10d.exchange import AHEAD, MOST_CHUNK_BYTES, PART, Frame
from lockstitch.collectives.c10d.peer_connections import LEAST_SILENCE_SECONDS
from lockstitch.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lockstitch.clock import Clock
    from lockstitch.collectives.c10d.ahead import AheadOnLine
    from lockstitch.collectives.c10d.exchange import Exchange
    from lockstitch.transport.stream import StreamConnection

_HEADER: Final = struct.Struct("<qIBII")
_LOOK_SECONDS: Final = 0.5
_MOST_AWAITED_BYTES: Final = 512 << 10


class PeerFailedError(RuntimeError):
    """What was to go to the rank at a position, or to come from there, did not."""

    def __init__(self, position: int, why: object) -> None:
        super().__init__(str(why))
        self.position = position


class PeerSilentError(PeerFailedError):
    """The host of that rank acknowledges nothing."""


class PeerLine(NamedTuple):
    """The connection to another rank, with what has gone ahead over it."""

    stream: StreamConnection
    ahead: AheadOnLine


def send_ahead(line: PeerLine, set_id: int, number: int, part: torch.Tensor) -> None:
    """Sends a part of the first chunk of an exchange under that number, as much of it as there is
    room for. Where the connection has failed the exchange, if there is one, will say so."""
    unsent = line.ahead.unsent
    header = _HEADER.pack(set_id, number, AHEAD, 0, part.nbytes)
    unsent += [memoryview(header), _bytes_of(part)]
    with ExitStack() as stack:
        stack.callback(line.stream.unwatch)
        if line.stream.watch() >= 0:
            stack.enter_context(suppress(ConnectionError))
            _send_some(line.stream, unsent)
    # The tensor is its owner's again before the rest has left.
    unsent[:] = [memoryview(bytes(each)) for each in unsent]


def transfer(  # noqa: PLR0913 - all that it works with
    exchange: Exchange,
    name: tuple[int, int],
    chunks: Iterable[torch.Tensor],
    lines: Mapping[int, PeerLine],
    clock: Clock,
    *,
    sent: Sequence[int] = (),
    timeout_seconds: float,
    silence_seconds: float,
) -> Iterator[torch.Tensor]:
    """Reduces each of the chunks in place, and yields it when that is done.

    `name`: of the exchange, a process set and a number in it. `lines`: the connections, by
    position; `sent`: the numbers under which all have sent ahead, by position. Raises
    `PeerFailedError` where a connection has ended, nothing at all moves for `timeout_seconds`, or a
    host has acknowledged nothing for `silence_seconds` (0: however long).
    """
    with ExitStack() as stack:
        ends = []
        for other, line in lines.items():
            stack.callback(line.stream.unwatch)
            descriptor = line.stream.watch()
            if descriptor < 0:
                raise PeerFailedError(other, "the connection is closed")
            ends.append(_End(other, line, descriptor, exchange, name, sent[other] if sent else 0))
        waiting = _Waiting(ends, clock, timeout_seconds, silence_seconds)
        remaining = iter(chunks)
        while not exchange.is_over:
            has_moved = exchange.wants_chunk
            if has_moved:
                exchange.begin(next(remaining))
            for end in ends:
                has_moved |= end.move()
            yield from exchange.finished()
            if not has_moved:
                waiting.wait()


class _End:
    """This rank's end of one connection, in one exchange."""

    def __init__(
        self,
        other: int,
        line: PeerLine,
        descriptor: int,
        exchange: Exchange,
        name: tuple[int, int],
        wanted: int,
    ) -> None:
        self.other = other
        self.stream, self._ahead = line
        self._wanted = wanted
        """The number of what the other has sent ahead of this exchange; 0 where that is nothing."""
        self.descriptor = descriptor
        self._exchange = exchange
        self._name = name
        self._outgoing = exchange.outgoing[other]
        self._unsent: list[memoryview] = []
        """Of the first of the frames that leave."""
        self._has_room = True
        self._has_more = False
        """Whether there may be room to send, and something to receive, as far as it is known."""
        self._header = memoryview(bytearray(_HEADER.size))
        self._head = self._header
        """What is missing of the next header; empty, too, where none will follow."""
        self._frame: Frame | None = None
        """What is coming before that."""
        self._content = self._header[:0]
        """What is missing of its content."""
        if wanted:
            self._take_kept()

    def events(self) -> int:
        """Returns what it waits for, in the words of `select.poll`."""
        events = select.POLLOUT if self._ahead.unsent or self._outgoing else 0
        if self._exchange.frames_to_come(self.other):
            self.stream.await_bytes(min(len(self._content or self._head), _MOST_AWAITED_BYTES))
            events |= select.POLLIN
        return events

    def note(self, events: int) -> None:
        """Takes in what `select.poll` has told; an error is found where it is acted on."""
        self._has_room |= bool(events & ~select.POLLIN)
        self._has_more |= bool(events & ~select.POLLOUT)

    def move(self) -> bool:
        """Sends and takes in what it can without waiting; returns whether that was anything. There
        are few calls of the system: after each the thread may wait for the interpreter's lock."""
        has_moved = False
        try:
            while self._has_room and (self._ahead.unsent or self._outgoing):
                self._send()
                has_moved = True
            while self._has_more and self._exchange.frames_to_come(self.other):
                self._receive()
                has_moved = True
        except (ConnectionError, ProtocolError) as error:
            raise PeerFailedError(self.other, error) from error
        return has_moved

    def _take_kept(self) -> None:
        try:
            if (kept := self._ahead.take(self._wanted)) is not None:
                frame = self._first_part(kept.nbytes)
                frame.content.view(torch.uint8).copy_(kept)
                self._exchange.has_come(self.other, frame)
        except ProtocolError as error:
            raise PeerFailedError(self.other, error) from error

    def _first_part(self, nbytes: int) -> Frame:
        return Frame(PART, 0, self._exchange.space(self.other, PART, 0, nbytes))

    def _send(self) -> None:
        if self._ahead.unsent:
            self._has_room = _send_some(self.stream, self._ahead.unsent)
            return
        if not self._unsent:
            kind, chunk, content = self._outgoing[0]
            header = _HEADER.pack(*self._name, kind, chunk, content.nbytes)
            self._unsent = [memoryview(header), _bytes_of(content)]
        self._has_room = _send_some(self.stream, self._unsent)
        if self._has_room:
            self._exchange.has_left(self.other)

    def _receive(self) -> None:
        """Takes in what is coming, and with the same call the header behind it."""
        wanted = len(self._content) + len(self._head)
        count = self.stream.receive_some([self._content, self._head])
        self._has_more = count == wanted
        of_content = min(count, len(self._content))
        self._content = self._content[of_content:]
        self._head = self._head[count - of_content :]
        if self._frame is not None and not len(self._content):
            if self._frame.kind == AHEAD:
                self._ahead.keep(self._frame.chunk, self._frame.content)
            else:
                self._exchange.has_come(self.other, self._frame)
            self._frame = None
        if self._frame is None and not len(self._head):
            self._read_header()

    def _read_header(self) -> None:
        if not self._exchange.frames_to_come(self.other):
            return
        *name, kind, chunk, nbytes = _HEADER.unpack(self._header)
        if kind == AHEAD:
            self._frame = self._ahead_frame((name[0], name[1]), nbytes)
        elif tuple(name) == self._name:
            content = self._exchange.space(self.other, kind, chunk, nbytes)
            self._frame = Frame(kind, chunk, content)
        else:
            raise ProtocolError(f"something of exchange {name} in exchange {self._name}")
        self._content = _bytes_of(self._frame.content)
        # What follows the last one is of another exchange.
        to_come = self._exchange.frames_to_come(self.other) - (self._frame.kind != AHEAD)
        self._head = self._header if to_come else self._header[:0]

    def _ahead_frame(self, name: tuple[int, int], nbytes: int) -> Frame:
        """Where something goes that has been sent ahead: of this exchange, or one that may come."""
        set_id, number = name
        if number == self._wanted and set_id == self._name[0]:
            return self._first_part(nbytes)
        if not 0 < nbytes <= MOST_CHUNK_BYTES:
            raise ProtocolError(f"{nbytes} bytes ahead of an exchange")
        return Frame(AHEAD, number, torch.empty(nbytes, dtype=torch.uint8))


class _Waiting:
    """Sleeps until one of the ends can go on, but not for ever."""

    def __init__(
        self, ends: list[_End], clock: Clock, timeout_seconds: float, silence_seconds: float
    ) -> None:
        self._ends = ends
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._silence_seconds = silence_seconds
        self._since: float | None = None
        """When there was nothing to do at first."""

    def wait(self) -> None:
        """Returns when an end can go on, or after a short while. Raises `PeerFailedError`."""
        poll = select.poll()
        waited_for = {}
        for end in self._ends:
            if events := end.events():
                poll.register(end.descriptor, events)
                waited_for[end.descriptor] = end
        if ready := poll.poll(_LOOK_SECONDS * 1000):
            self._since = None
            for descriptor, events in ready:
                waited_for[descriptor].note(events)
            return
        now = self._clock.now()
        self._since = self._since or now
        for end in waited_for.values():
            silent = end.stream.seconds_unacknowledged() if self._silence_seconds else 0.0
            if silent > max(self._silence_seconds, LEAST_SILENCE_SECONDS):
                raise PeerSilentError(end.other, f"its host has been silent for {silent:.1f} s")
        if now - self._since >= self._timeout_seconds:
            first = next(iter(waited_for.values()))
            raise PeerFailedError(first.other, f"nothing moved for {now - self._since:g} s")


def _send_some(stream: StreamConnection, unsent: list[memoryview]) -> bool:
    """Sends what there is room for, and leaves the rest; returns whether that is nothing."""
    count = stream.send_some(unsent)
    while unsent and count >= len(unsent[0]):
        count -= len(unsent.pop(0))
    if unsent:
        unsent[0] = unsent[0][count:]
    return not unsent


def _bytes_of(content: torch.Tensor) -> memoryview:
    return memoryview(content.view(torch.uint8).numpy().data)
