"""The connections between rank 0 and the others: whole messages both ways. (Where a process set has
a coordinator of its own, its first rank stands where rank 0 stands here.)

On rank 0 one thread reads all connections and asks the coordinator; elsewhere one thread reads the
one. Whoever submits sends for himself. Rank 0 talks to its own coordinator without a connection.
What goes over one is in `messages`.

A connection on which anything has failed is over, whichever end and direction it was: what was to
be said then is lost, and nobody could know. Its end reaches the thread that reads it on both sides,
and from there the coordinator, which tells all others. So does a thread of ours that cannot go on.

A rank proves with its greeting that it belongs here, and so does rank 0 (`link.handshake`): it has
the job's secret, or where there is none, what rank 0 has put into the store. Where the job has a
secret every message after that has a MAC. That hides nothing: names and shapes can be read.
"""

from __future__ import annotations

import contextlib
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, cast

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.c10d import messages
from lockstitch.collectives.c10d.entrance import Entrance
from lockstitch.collectives.c10d.messages import Leave, Lost, Message, Welcome
from lockstitch.collectives.c10d.routes import Addressed
from lockstitch.errors import CollectiveError, HandshakeError, ProtocolError
from lockstitch.ids import WorkerInfo
from lockstitch.link.addresses import hint
from lockstitch.link.handshake import ListenerHandshake, why_other_version
from lockstitch.link.line import call
from lockstitch.link.pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockstitch.clock import Clock
    from lockstitch.collectives.c10d.link_options import LinkOptions
    from lockstitch.link.door import Guest
    from lockstitch.link.greetings import Hello
    from lockstitch.link.line import Line
    from lockstitch.transport import Connection, Listener, Pollable, Transport


class CoordinatorClient:
    """The end of every rank but 0."""

    def __init__(
        self,
        rank: int,
        line: Line[Connection],
        hear: Callable[[Message], None],
        link_options: LinkOptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options = link_options
        self._pulse = Pulse(link_options.heartbeat, clock)
        self._pulse.add(line)
        self._line = line
        self._hear = hear
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"rank {rank} orders", daemon=True)
        self.bytes_sent = 0
        try:
            self._thread.start()
        except BaseException:
            line.close()
            raise

    def tell(self, message: Message) -> None:
        """Says something to rank 0. Where that fails the session ends, by the thread that reads."""
        with contextlib.suppress(ConnectionError):
            self.bytes_sent += self._line.send(messages.encode(message))

    def close(self) -> None:
        self.tell(Leave())
        self._is_closed = True
        self._line.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                for record in self._line.listen(self._pulse):
                    message = messages.decode(record)
                    self._is_closed |= isinstance(message, Leave)
                    self._hear(message)
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing is read any more
            self._line.close()  # so that rank 0 hears of it, too
            if not self._is_closed:
                centre = self._options.coordinator_rank
                why = f"{error}{self._options.place_of(centre)}"
                self._hear(Lost(centre, f"{messages.UNREACHED} ({why})"))


class Table(Protocol):
    """What is decided where others are heard: by the coordinator, or a speaker."""

    def hear(self, told: Iterable[tuple[int, Message]]) -> list[Addressed]:
        """Takes in what ranks have told; returns the answers."""
        ...

    def lost(self, rank: int, why: str) -> list[Addressed]:
        """A rank's connection has ended."""
        ...


class CoordinatorServer:
    """The end of rank 0, which has the coordinator. `expected`: who has to come within the time of
    the `terms`; when all have they are told `Welcome`, and else that somebody is lost. Those that
    are `speakers` say it when all for whom they speak have come."""

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        coordinator: Table,
        transport: Transport,
        listener: Listener,
        hear: Callable[[Message], None],
        link_options: LinkOptions,
        *,
        expected: Iterable[int] = (),
        speakers: Iterable[int] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._options = link_options
        self._rank = link_options.coordinator_rank
        self._info = _info(link_options.coordinator_rank)
        self._expected = set(expected)
        self._incomplete = set(speakers)
        self._is_waiting = True
        """For those who are expected, and for whom speakers speak."""
        self._clock = clock
        self._deadline = clock.now() + link_options.greeting_seconds
        self._pulse = Pulse(link_options.heartbeat, clock)
        self._coordinator = coordinator
        self._hear = hear
        self._transport = transport
        self._poller = transport.poller()
        self._entrance = Entrance(
            listener,
            self._poller,
            clock,
            lambda: ListenerHandshake(self._info, link_options.secret, self._why_not),
            self._accept_rank,
            expected=len(self._expected),
        )
        self._lines: dict[int, Line[Connection]] = {}
        self._own: SimpleQueue[Message] = SimpleQueue()
        self._ranks: dict[int, int] = {}
        """Which rank is behind a connection."""
        self._is_closed = False
        self.bytes_sent = 0
        self._thread = threading.Thread(
            target=self._run, name=f"rank {self._rank} orders", daemon=True
        )
        self._thread.start()

    def tell(self, message: Message) -> None:
        """Says something to the coordinator."""
        self.bytes_sent += len(messages.encode(message))
        self._own.put(message)
        self._poller.wake()

    def close(self) -> None:
        self.tell(Leave())
        self._is_closed = True
        self._poller.wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        words: Message = Leave(self._rank)
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - whatever it was, no orders come any more
            words = Lost(self._rank, f"could not give orders any more: {error!r}")
        self._end(words)
        if isinstance(words, Lost):
            self._hear(words)

    def _serve(self) -> None:
        self._entrance.open()
        while True:
            if self._is_waiting:
                self._await_all()
            self._entrance.pass_time()
            for silent, why in self._pulse.pass_time():
                self._hang_up(cast("Line[Connection]", silent), why)
            told: list[tuple[int, Message]] = []
            for pollable in self._poller.wait(self._remaining_seconds()):
                self._look_at(pollable, told)
            self._entrance.reopen()
            while not self._own.empty():
                told.append((self._rank, self._own.get()))
            self._send(self._coordinator.hear(told))
            self._pass_time()
            if self._is_closed and self._own.empty() and self._may_end():
                break

    def _pass_time(self) -> None:
        """Does what is due, besides."""

    def _may_end(self) -> bool:
        """Whether it may end, once this rank has shut down."""
        return True

    def _welcome(self) -> None:
        """Called when all are here."""
        self._send([Addressed(rank, Welcome()) for rank in (*self._lines, self._rank)])

    def _remaining_seconds(self) -> float | None:
        waits = [self._entrance.seconds_to_next(), self._pulse.seconds_to_next()]
        if self._is_waiting and self._expected:
            waits.append(max(0.0, self._deadline - self._clock.now()))
        return min((wait for wait in waits if wait is not None), default=None)

    def _await_all(self) -> None:
        """Tells all ranks when everybody has come, or when the time is over."""
        if not self._expected:
            if not self._incomplete:
                self._is_waiting = False
                self._welcome()
        elif self._clock.now() >= self._deadline:
            self._is_waiting = False
            names = self._options.names
            words = f"did not come to {names.one(self._rank)} within "
            words += f"{self._options.greeting_seconds:g} s"
            first, *others = sorted(self._expected)
            if others:
                words += f", nor did {names.in_words(others)}"
            if place := self._options.place_of(first):
                words += f"{place}; unless it has died, {hint(self._entrance.address)}"
            for rank in (first, *others):
                self._send(self._coordinator.lost(rank, words))

    def _look_at(self, pollable: Pollable, told: list[tuple[int, Message]]) -> None:
        if self._entrance.look_at(pollable):
            return
        rank = self._ranks.get(id(pollable))
        if rank is not None:
            self._hear_rank(rank, told)
        self._poller.arm(pollable)

    def _hear_rank(self, rank: int, told: list[tuple[int, Message]]) -> None:
        line = self._lines[rank]
        try:
            # Those before one that cannot be read count.
            for record in line.read(0):
                message = messages.decode(record)
                if isinstance(message, Welcome) and rank in self._incomplete:
                    self._incomplete.discard(rank)
                else:
                    told.append((rank, message))
        except BlockingIOError:
            pass
        except (ConnectionError, ProtocolError) as error:
            self._hang_up(line, error)

    def _why_not(self, hello: Hello) -> str:
        """Why one that has proved itself does not come in."""
        rank = hello.worker.rank
        return f"rank {rank} is here already" if rank in self._lines else why_other_version(hello)

    def _accept_rank(self, guest: Guest[Connection]) -> bool:
        """Takes in a rank that has proved itself; returns whether it is still there."""
        assert guest.handshake.caller is not None
        rank = guest.handshake.caller.id
        try:
            line = guest.line(messages.MOST_BYTES, is_authenticated=self._options.is_authenticated)
            if rank in self._expected and not self._is_waiting:
                line.send(messages.encode(Lost(rank, "came too late")))
        except ConnectionError:
            self._entrance.turn_away(guest)  # it may come again
            return False
        self._ranks[id(guest.stream)] = rank
        self._lines[rank] = line
        self._pulse.add(line)
        self._expected.discard(rank)
        return True

    def _hang_up(self, line: Line[Connection], why: Exception) -> None:
        self._poller.remove(line.stream)
        self._pulse.discard(line)
        rank = self._ranks.pop(id(line.stream), None)
        line.close()
        if rank is not None:
            del self._lines[rank]
            place = self._options.place_of(rank)
            self._send(self._coordinator.lost(rank, f"{messages.UNREACHED} ({why}{place})"))

    def _send(self, addressed: list[Addressed]) -> None:
        for to, message in addressed:
            if to == self._rank:
                self._hear(message)
                continue
            line = self._lines.get(to)
            if line is not None:
                with contextlib.suppress(ConnectionError):  # it is read to its end
                    line.send(messages.encode(message))

    def _end(self, words: Message) -> None:
        for line in self._lines.values():
            with contextlib.suppress(ConnectionError):
                line.send(messages.encode(words))
            line.close()
        self._entrance.close()
        self._poller.close()
        self._transport.close()


def connect_to_coordinator(
    transport: Transport,
    address: str,
    rank: int,
    link_options: LinkOptions,
    look: Callable[[], object] = lambda: None,
) -> Line[Connection]:
    """The line of `rank` to rank 0. `look` is called now and then until rank 0 has answered, and
    may raise."""
    names = link_options.names
    coordinator_rank = names.one(link_options.coordinator_rank)
    try:
        connection = transport.connect(address, link_options.connect_seconds)
    except (ConnectionError, TimeoutError) as error:
        place = names.place(link_options.coordinator_rank)
        where = f" ({place})" if place else ""
        raise CollectiveError(
            f"{coordinator_rank}{where} cannot be reached at {address}: {error}"
        ) from error
    if link_options.heartbeat:
        connection.bound_silence(link_options.silence)
    try:
        return call(
            connection,
            _info(rank),
            _info(link_options.coordinator_rank).worker,
            link_options.secret,
            messages.MOST_BYTES,
            timeout_seconds=link_options.greeting_seconds,
            is_authenticated=link_options.is_authenticated,
            look=look,
        )
    except CollectiveError:  # of `look`
        raise
    except HandshakeError as error:
        raise CollectiveError(
            f"{names.one(rank)} was not let in by {coordinator_rank} at {address}: {error}"
        ) from error
    except (ConnectionError, TimeoutError) as error:
        raise CollectiveError(f"{coordinator_rank} could not be greeted: {error}") from error


def _info(rank: int) -> WorkerInfo:
    """Returns the name and rank by which a rank greets."""
    return WorkerInfo(f"rank{rank}", rank)
