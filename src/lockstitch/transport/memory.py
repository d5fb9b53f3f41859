"""The twin inside one process: a network of workers by name, with mishaps on demand.

Each worker has its own `MemoryTransport` on one shared `MemoryNetwork`. The network knows for every
frame who sends it to whom and of which kind it is, and asks a script what shall happen to it: it
may arrive, arrive late, twice, out of order or never, and a worker may die of it. Delays are those
of the network's clock, so with a manual clock nothing depends on real time.

Frames that share a connection keep their order unless the script says otherwise, and a late frame
does not hold up those behind it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.transport.memory_streams import ALREADY, MemoryConnection, MemoryPoller, Pipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.clock import Clock
    from lockstitch.transport.base import RemainingTime

# The frame header begins with the length of the inline part (4 bytes), then the kind.
_KIND_OFFSET = 4


@dataclass(frozen=True, slots=True)
class Deliver:
    """The frame arrives after that time, or behind that many later frames of its connection."""

    after_seconds: float = 0.0
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker dies: all its connections and listeners close at once."""

    worker: str


@dataclass(frozen=True, slots=True)
class Break:
    """Connections between the frame's sender and its receiver end, and both live: the frame's own
    one, the others, or all of them."""

    own: bool = True
    others: bool = True


Action = Deliver | Kill | Break


class FrameScript(Protocol):
    """Decides what happens to frames; `testing.Faults` is one."""

    def apply(self, sender: str, receiver: str, kind: int) -> Sequence[Action]:
        """What shall happen to a frame of `kind`; nothing at all means that it is lost."""
        ...


class MemoryNetwork:
    """Who listens where, who is cut off from whom; shared by the transports of several workers.

    `capacity_bytes` may lie unread in one direction of a connection before its sender blocks.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        faults: FrameScript | None = None,
        capacity_bytes: int = 1 << 20,
    ) -> None:
        self.clock = clock
        self.faults = faults
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._listeners: dict[str, MemoryListener] = {}
        self._transports: WeakSet[MemoryTransport] = WeakSet()
        self._partitions: set[frozenset[str]] = set()
        self._ports = itertools.count(1)

    def __repr__(self) -> str:
        return f"<MemoryNetwork · {len(self._listeners)} listeners · {self.faults!r}>"

    def transport(self, name: str) -> MemoryTransport:
        """A transport for the worker `name`."""
        transport = MemoryTransport(self, name)
        with self._lock:
            self._transports.add(transport)
        return transport

    def partition(self, one: str, other: str) -> None:
        """Cuts two workers off from each other: frames are lost, new connections time out."""
        with self._lock:
            self._partitions.add(frozenset((one, other)))

    def heal(self, one: str, other: str) -> None:
        """Ends a partition; what was lost stays lost."""
        with self._lock:
            self._partitions.discard(frozenset((one, other)))

    def kill(self, name: str) -> None:
        """The worker dies, as its peers see it; a later transport of that name is a new life."""
        with self._lock:
            transports = [each for each in self._transports if each.name == name]
        for transport in transports:
            transport.close()

    def is_dead(self, name: str) -> bool:
        """Whether a worker of that name was there, and none is any more."""
        with self._lock:
            transports = [each for each in self._transports if each.name == name]
        return bool(transports) and all(each.is_closed for each in transports)

    def reset(self, one: str, other: str) -> None:
        """Ends all connections between two workers; they may connect anew."""
        with self._lock:
            transports = [each for each in self._transports if each.name == one]
        for transport in transports:
            transport.reset(other)

    def is_cut(self, one: str, other: str) -> bool:
        """Whether two workers are cut off from each other."""
        with self._lock:
            return frozenset((one, other)) in self._partitions

    def carry(
        self,
        sender: str,
        receiver: str,
        frame: bytes,
        pipe: Pipe,
        remaining_time: RemainingTime | None = None,
    ) -> None:
        """Brings a frame to its receiver, or whatever the script wants."""
        if self.is_cut(sender, receiver):
            return
        actions: Sequence[Action] = (Deliver(),)
        if self.faults is not None and len(frame) > _KIND_OFFSET:
            actions = self.faults.apply(sender, receiver, frame[_KIND_OFFSET])
        for action in actions:
            if isinstance(action, Kill):
                self.kill(action.worker)
            elif isinstance(action, Break):
                self._break(sender, receiver, pipe, action)
            else:
                pipe.put(frame, action.after_seconds, action.behind, remaining_time)

    def _break(self, sender: str, receiver: str, pipe: Pipe, which: Break) -> None:
        with self._lock:
            transports = [each for each in self._transports if each.name == sender]
        for transport in transports:
            for connection in transport.connections(receiver):
                if which.own if connection.sends_by(pipe) else which.others:
                    connection.close()

    def note_taken(self, receiver: str, frame: bytes) -> None:
        """`receiver` has read a frame to its end; for subclasses."""

    def open_listener(self, owner: MemoryTransport, address: str | None) -> MemoryListener:
        """Registers a listener of `owner`; `OSError` when the address is taken."""
        with self._lock:
            if address is None:
                address = f"memory:{owner.name}/{next(self._ports)}"
            if address in self._listeners:
                raise OSError(f"{address} is taken")
            listener = MemoryListener(self, owner, address)
            self._listeners[address] = listener
            return listener

    def close_listener(self, listener: MemoryListener) -> None:
        """Takes a listener out of the register; harmless when repeated."""
        with self._lock:
            if self._listeners.get(listener.address) is listener:
                del self._listeners[listener.address]

    def open_connection(self, owner: MemoryTransport, address: str) -> MemoryConnection:
        """Connects `owner` to the listener at `address`."""
        with self._lock:
            listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(f"cannot connect to {address}: nobody listens there")
        if self.is_cut(owner.name, listener.owner.name):
            raise TimeoutError(f"{address} did not answer: the network is partitioned")
        here, there = owner.name, listener.owner.name
        out = Pipe(self.clock, self._capacity_bytes, partial(self.note_taken, there))
        back = Pipe(self.clock, self._capacity_bytes, partial(self.note_taken, here))
        near = MemoryConnection(self.clock, address, (back, out), partial(self.carry, here, there))
        far = MemoryConnection(
            self.clock, f"memory:{here}", (out, back), partial(self.carry, there, here)
        )
        owner.adopt(near)
        listener.offer(far)
        return near


class MemoryTransport:
    """The transport of one worker, `name`, on a network; addresses are `memory:name/number`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.name = name
        self._network = network
        self._lock = threading.Lock()
        self._ends: WeakSet[MemoryConnection | MemoryListener] = WeakSet()
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryTransport of {self.name!r} · {'closed' if self._closed else 'open'}>"

    def listen(self, address: str | None = None) -> MemoryListener:
        """Listens at `address`, or at a fresh one."""
        listener = self._network.open_listener(self, address)
        self.adopt(listener)
        return listener

    def connect(self, address: str, timeout_seconds: float) -> MemoryConnection:
        """Connects to a listener at once, or fails at once: `timeout_seconds` is not needed."""
        del timeout_seconds
        if self._closed:
            raise ConnectionError(f"the transport of {self.name} is closed")
        return self._network.open_connection(self, address)

    def poller(self) -> MemoryPoller:
        return MemoryPoller(self._network.clock)

    @property
    def is_closed(self) -> bool:
        """Whether this worker can neither be reached nor reach anybody."""
        return self._closed

    def close(self) -> None:
        """Closes every connection and listener of this worker."""
        with self._lock:
            self._closed = True
            ends = list(self._ends)
        for end in ends:
            end.close()

    def reset(self, other: str) -> None:
        """Ends all connections with that worker."""
        for connection in self.connections(other):
            connection.close()

    def connections(self, other: str) -> list[MemoryConnection]:
        """This worker's ends of all connections with that one."""
        with self._lock:
            ends = [each for each in self._ends if isinstance(each, MemoryConnection)]
        return [each for each in ends if each.peer.split("/")[0] == f"memory:{other}"]

    def adopt(self, end: MemoryConnection | MemoryListener) -> None:
        """Makes `end` one of this worker's, to be closed with it."""
        with self._lock:
            self._ends.add(end)
            is_closed = self._closed
        if is_closed:
            end.close()
            raise ConnectionError(f"the transport of {self.name} is closed")


class MemoryListener:
    """Accepts connections at `address` on behalf of `owner`."""

    def __init__(self, network: MemoryNetwork, owner: MemoryTransport, address: str) -> None:
        self.owner = owner
        self.address = address
        self._network = network
        self._lock = threading.Lock()
        self._waiting: deque[MemoryConnection] = deque()
        self._watchers: set[threading.Event] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryListener at {self.address!r} · {len(self._waiting)} waiting>"

    def accept(self) -> MemoryConnection | None:
        """One waiting connection, or None."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        """Refuses whoever waits and whoever comes; harmless when repeated."""
        self._network.close_listener(self)
        with self._lock:
            self._closed = True
            refused = list(self._waiting)
            self._waiting.clear()
            self._tell_watchers()
        for connection in refused:
            connection.close()

    def offer(self, connection: MemoryConnection) -> None:
        """Somebody has connected."""
        self.owner.adopt(connection)
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._waiting.append(connection)
                self._tell_watchers()
        if is_closed:
            connection.close()

    def readable_at(self) -> float | None:
        with self._lock:
            return ALREADY if self._waiting or self._closed else None

    def watch(self, changed: threading.Event) -> None:
        with self._lock:
            self._watchers.add(changed)

    def unwatch(self, changed: threading.Event) -> None:
        with self._lock:
            self._watchers.discard(changed)

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.set()
