"""What the workers of a `LocalCluster` have said to each other: a count of every frame.

    before = cluster.traffic()
    ...
    sent = cluster.traffic() - before
    assert sent.kinds == {"Call": 1, "Reply": 1}

So a test can hold a program, or Lockstitch itself, to what it may cost, whatever the machine.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstitch.link.greetings import GREETINGS
from lockstitch.transport.memory import MemoryNetwork, MemoryTransport
from lockstitch.wire.messages import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.clock import Clock
    from lockstitch.transport.base import RemainingTime
    from lockstitch.transport.memory import FrameScript
    from lockstitch.transport.memory_streams import MemoryConnection, Pipe

# The frame header begins with the length of the inline part (4 bytes), then the kind.
_KIND_OFFSET = 4
_NAMES = {kind: each.__name__ for kind, each in (*KINDS.items(), *GREETINGS.items())}


@dataclass(frozen=True)
class Traffic:
    """Frames and connections so far, or between two moments; frames that were lost count too."""

    connections: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    """How many messages of each class."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """How many bytes all messages of each class had together."""
    senders: Mapping[str, int] = field(default_factory=dict)
    """How many messages each worker has sent."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """How many connections each worker has opened or been offered."""
    depth: int = 0
    """Messages in the longest chain of which each was sent when its sender had read the one before:
    so many steps wait for each other. Counted from the beginning, in a difference too."""

    @property
    def messages(self) -> int:
        """How many messages there were, of all classes."""
        return sum(self.kinds.values())

    @property
    def bytes(self) -> int:
        """How many bytes all messages had together."""
        return sum(self.sizes.values())

    def without(self, *kinds: str) -> Traffic:
        """Returns the same with no messages of these classes in `kinds` and `sizes`."""
        return dataclasses.replace(
            self,
            kinds={kind: count for kind, count in self.kinds.items() if kind not in kinds},
            sizes={kind: size for kind, size in self.sizes.items() if kind not in kinds},
        )

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.connections + other.connections,
            dict(Counter(self.kinds) + Counter(other.kinds)),
            dict(Counter(self.sizes) + Counter(other.sizes)),
            dict(Counter(self.senders) + Counter(other.senders)),
            dict(Counter(self.ends) + Counter(other.ends)),
            max(self.depth, other.depth),
        )

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(
            self.connections - earlier.connections,
            dict(Counter(self.kinds) - Counter(earlier.kinds)),
            dict(Counter(self.sizes) - Counter(earlier.sizes)),
            dict(Counter(self.senders) - Counter(earlier.senders)),
            dict(Counter(self.ends) - Counter(earlier.ends)),
            self.depth,
        )


class FrameCounter:
    """Counts frames; several threads may tell it of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections = 0
        self._kinds: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()
        self._senders: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        self._depths: Counter[str] = Counter()

    def note_sent(self, sender: str, kind: int, nbytes: int) -> int:
        """Counts a frame that `sender` sends; returns how deep it lies."""
        with self._lock:
            self._kinds[kind] += 1
            self._sizes[kind] += nbytes
            self._senders[sender] += 1
            return self._depths[sender] + 1

    def note_read(self, receiver: str, depth: int) -> None:
        """Notes that `receiver` has read a frame that lies so deep."""
        with self._lock:
            self._depths[receiver] = max(self._depths[receiver], depth)

    def note_connected(self, *ends: str) -> None:
        """Counts a connection that was opened between two workers."""
        with self._lock:
            self._connections += 1
            self._ends.update(ends)

    def traffic(self) -> Traffic:
        """Returns the count as of now."""
        with self._lock:
            return Traffic(
                self._connections,
                _by_name(self._kinds),
                _by_name(self._sizes),
                dict(self._senders),
                dict(self._ends),
                max(self._depths.values(), default=0),
            )


def kind_of(head: bytes | memoryview) -> int:
    """Returns the kind of the frame that begins so."""
    return head[_KIND_OFFSET]


def _by_name(counts: Mapping[int, int]) -> dict[str, int]:
    return {_NAMES[kind]: count for kind, count in counts.items()}


class _Frame(bytes):
    """A frame that knows how deep it lies."""

    depth = 0


class CountingNetwork(MemoryNetwork):
    """A `MemoryNetwork` that keeps the count."""

    def __init__(self, clock: Clock, faults: FrameScript | None = None) -> None:
        super().__init__(clock, faults)
        self._counter = FrameCounter()

    def carry(
        self,
        sender: str,
        receiver: str,
        frame: bytes,
        pipe: Pipe,
        remaining_time: RemainingTime | None = None,
    ) -> None:
        """See `MemoryNetwork.carry`."""
        counted = _Frame(frame)
        counted.depth = self._counter.note_sent(sender, kind_of(frame), len(frame))
        super().carry(sender, receiver, counted, pipe, remaining_time)

    def note_taken(self, receiver: str, frame: bytes) -> None:
        """See `MemoryNetwork.note_taken`."""
        if isinstance(frame, _Frame):
            self._counter.note_read(receiver, frame.depth)

    def open_connection(self, owner: MemoryTransport, address: str) -> MemoryConnection:
        """See `MemoryNetwork.open_connection`."""
        connection = super().open_connection(owner, address)
        listening, _, _ = address.removeprefix("memory:").rpartition("/")
        self._counter.note_connected(owner.name, listening)
        return connection

    def traffic(self) -> Traffic:
        """Returns the count as of now."""
        return self._counter.traffic()
