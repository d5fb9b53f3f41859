"""The connections over which ranks of different hosts exchange chunks: one between two of them.

Of two ranks the higher one calls the lower, which says in the store where it listens. Both prove
with the first words that they belong to the job, as towards rank 0 (`link.handshake`); what follows
is raw, for `chunk_transfer`. A thread lets in whoever comes, whatever this rank waits for itself,
so ranks that open several process sets at once do not wait for each other in a circle.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.c10d.entrance import Entrance
from lockstitch.errors import CollectiveError, HandshakeError, RankLostError
from lockstitch.ids import WorkerInfo
from lockstitch.link.handshake import ListenerHandshake, why_other_version
from lockstitch.link.line import call
from lockstitch.rendezvous import missing_keys
from lockstitch.transport.stream import StreamConnection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.distributed_c10d import Store

    from lockstitch.clock import Clock
    from lockstitch.collectives.c10d.link_options import LinkOptions
    from lockstitch.link.door import Guest
    from lockstitch.link.greetings import Hello
    from lockstitch.transport import Connection, Listener, TcpTransport

LEAST_SILENCE_SECONDS: Final = 2.0
"""The system asks a silent host for a sign of life once a second at most."""
_LOOK_SECONDS: Final = 0.5
_NO_RECORDS: Final = 0


class PeerConnections:
    """Those of one rank, from any thread. `transport` listens at this host's address; `store` is
    where the ranks say where they listen. `link_options` have the secret and the heartbeat."""

    def __init__(
        self,
        rank: int,
        store: Store,
        transport: TcpTransport,
        link_options: LinkOptions,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._rank = rank
        self._store = store
        self._transport = transport
        self._names = link_options.names
        self._secret = link_options.secret.of("chunks")
        self._silence_seconds = link_options.silence
        self.clock = clock
        self._streams: dict[int, StreamConnection] = {}
        self._changed = threading.Condition()
        """Guards the connections, and tells of each that comes."""
        self._calling = threading.Lock()
        self._is_closed = False
        self._entrance: _Entry | None = None

    def __repr__(self) -> str:
        return f"<PeerConnections of rank {self._rank} · {len(self._streams)}>"

    def connect(self, ranks: Iterable[int], seconds: float) -> dict[int, StreamConnection]:
        """Returns the connections to these ranks, without this one itself; makes those that there
        are not. All of the ranks do so at about the same time. Raises `CollectiveError` where one
        does not come, or cannot be reached, within so many seconds."""
        others = [rank for rank in ranks if rank != self._rank]
        deadline = self.clock.now() + seconds
        if not all(other in self._streams for other in others):
            self._call_lower(others, deadline)
            self._await(others, deadline, seconds)
        return {other: self._streams[other] for other in others}

    def check_silence(self) -> None:
        """Raises `RankLostError` where the host of one that is connected is silent."""
        bound = max(self._silence_seconds, LEAST_SILENCE_SECONDS)
        for rank, stream in self._streams.copy().items() if self._silence_seconds else ():
            if (silent := stream.seconds_unacknowledged()) > bound:
                who = f"{self._names.one(rank)}{self._place(rank)}"
                raise RankLostError(
                    f"nothing goes to or comes from {who}, any more (its host has been silent for "
                    f"{silent:.1f} s)"
                )

    def abort(self) -> None:
        """Ends them: whoever waits for one of them sees it end. Harmless when repeated."""
        with self._changed:
            self._is_closed = True
            streams = list(self._streams.values())
            self._changed.notify_all()
        for stream in streams:
            stream.close()

    def close(self) -> None:
        """Ends them, and lets nobody in any more; harmless when repeated."""
        self.abort()
        if self._entrance is not None:
            self._entrance.close()

    # ------------------------------------------------------------ inside

    def _listen(self) -> _Entry:
        self._check()
        try:
            listener = self._transport.listen()
        except OSError:  # all of the ports that may be used are taken
            listener = self._transport.listen_anywhere()
        entrance = _Entry(self, listener, self._transport, self.clock)
        try:
            self._store.set(_key(self._rank), listener.address)
            self._check()  # who has closed this meanwhile knows of no entrance
        except BaseException:
            entrance.close()
            raise
        return entrance

    def _call_lower(self, others: list[int], deadline: float) -> None:
        with self._calling:
            if self._entrance is None:
                self._entrance = self._listen()
            for other in others:
                if other < self._rank and other not in self._streams:
                    self._call(other, deadline)

    def _call(self, other: int, deadline: float) -> None:
        def seconds_left() -> float:
            return max(0.1, deadline - self.clock.now())

        who = f"{self._names.one(other)}{self._place(other)}"
        if missing_keys(self._store, [_key(other)], seconds_left()):
            raise CollectiveError(f"{who} has not said in time where it can be reached for chunks")
        address = self._store.get(_key(other)).decode()
        silence = self._silence_seconds or seconds_left()
        try:
            stream = self._transport.connect(address, min(silence, seconds_left()))
            me, peer = _info(self._rank), _info(other).worker
            call(
                stream,
                *(me, peer, self._secret, _NO_RECORDS),
                timeout_seconds=seconds_left(),
                look=self._check,
                clock=self.clock,
            )
        except (OSError, HandshakeError) as error:
            raise CollectiveError(
                f"{self._names.one(self._rank)} could not connect to {who} at {address}: {error}"
            ) from error
        self.add(other, stream)

    def _await(self, others: list[int], deadline: float, seconds: float) -> None:
        with self._changed:
            while missing := [other for other in others if other not in self._streams]:
                self._check()
                left = deadline - self.clock.now()
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOK_SECONDS))
        if missing:
            raise CollectiveError(
                f"{self._names.in_words(missing)}{self._place(missing[0])} did not connect to "
                f"{self._names.one(self._rank)} within {seconds:g} s, to exchange chunks with it"
            )

    def _check(self) -> None:
        if self._is_closed:
            raise CollectiveError(f"{self._names.one(self._rank)} connects to nobody any more")

    def _place(self, rank: int) -> str:
        place = self._names.place(rank)
        return f", on {place}" if place else ""

    # ------------------------------------------------------------ for the entrance

    def handshake(self) -> ListenerHandshake:
        """Returns how somebody is greeted who comes."""
        return ListenerHandshake(_info(self._rank), self._secret, self._why_not)

    def add(self, rank: int, stream: StreamConnection) -> None:
        """Takes in the connection to a rank."""
        with self._changed:
            if self._is_closed or rank in self._streams:
                stream.close()
                return
            if self._silence_seconds:
                stream.watch_silence(self._silence_seconds)
            self._streams[rank] = stream
            self._changed.notify_all()

    def _why_not(self, hello: Hello) -> str:
        """Why one that has proved itself does not come in."""
        rank = hello.worker.rank
        return f"rank {rank} is here already" if rank in self._streams else why_other_version(hello)


class _Entry:
    """Where others connect to a rank; a thread of its own lets them in."""

    def __init__(
        self, peers: PeerConnections, listener: Listener, transport: TcpTransport, clock: Clock
    ) -> None:
        self._peers = peers
        self._poller = transport.poller()
        self._entrance = Entrance(listener, self._poller, clock, peers.handshake, self._welcome)
        self._is_closed = False
        name = f"{peers!r} entrance"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Lets nobody in any more."""
        self._is_closed = True
        self._poller.wake()
        self._thread.join()

    def _run(self) -> None:
        self._entrance.open()
        while not self._is_closed:
            for pollable in self._poller.wait(self._entrance.seconds_to_next()):
                self._entrance.look_at(pollable)
            self._entrance.reopen()
            self._entrance.pass_time()
        self._entrance.close()
        self._poller.close()

    def _welcome(self, guest: Guest[Connection]) -> bool:
        """Hands the connection on to those who exchange chunks: the poller is done with it."""
        stream, caller = guest.stream, guest.handshake.caller
        assert isinstance(stream, StreamConnection)
        assert caller is not None
        self._poller.remove(stream)
        try:
            stream.send([guest.welcome])
        except OSError:
            stream.close()
        else:
            self._peers.add(caller.id, stream)
        return False


def _key(rank: int) -> str:
    return f"chunks/{rank}"


def _info(rank: int) -> WorkerInfo:
    """Returns the name and rank by which a rank greets."""
    return WorkerInfo(f"rank{rank}", rank)
