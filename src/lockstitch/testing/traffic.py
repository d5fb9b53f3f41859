"""What the workers of a `LocalCluster` have said to each other: a count of every frame.

    before = cluster.traffic()
    ...
    sent = cluster.traffic() - before
    assert sent.kinds == {"Call": 1, "Reply": 1}

So a test can hold a program, or Lockstitch itself, to what it may cost, whatever the machine.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstitch.transport.greetings import GREETINGS
from lockstitch.transport.memory import MemoryNetwork, MemoryTransport
from lockstitch.wire.messages import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.clock import Clock
    from lockstitch.transport.base import Patience
    from lockstitch.transport.memory import FrameScript
    from lockstitch.transport.memory_streams import MemoryConnection, Pipe

# The frame header begins with the length of the inline part (4 bytes), then the kind.
_KIND_OFFSET = 4
_NAMES = {kind: each.__name__ for kind, each in (*KINDS.items(), *GREETINGS.items())}


@dataclass(frozen=True)
class Traffic:
    """Frames and connections so far, or between two moments; frames that were lost count too."""

    connections: int = 0
    bytes: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    """How many messages of each class."""
    senders: Mapping[str, int] = field(default_factory=dict)
    """How many messages each worker has sent."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """How many connections each worker has opened or been offered."""

    @property
    def messages(self) -> int:
        """All of them."""
        return sum(self.kinds.values())

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(
            self.connections - earlier.connections,
            self.bytes - earlier.bytes,
            dict(Counter(self.kinds) - Counter(earlier.kinds)),
            dict(Counter(self.senders) - Counter(earlier.senders)),
            dict(Counter(self.ends) - Counter(earlier.ends)),
        )


class CountingNetwork(MemoryNetwork):
    """A `MemoryNetwork` that keeps the count."""

    def __init__(self, clock: Clock, faults: FrameScript | None = None) -> None:
        super().__init__(clock, faults)
        self._count_lock = threading.Lock()
        self._bytes = self._connections = 0
        self._kinds: Counter[int] = Counter()
        self._senders: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()

    def carry(
        self, sender: str, receiver: str, frame: bytes, pipe: Pipe, patience: Patience | None = None
    ) -> None:
        """See `MemoryNetwork.carry`."""
        with self._count_lock:
            self._bytes += len(frame)
            self._senders[sender] += 1
            self._kinds[frame[_KIND_OFFSET]] += 1
        super().carry(sender, receiver, frame, pipe, patience)

    def open_connection(self, owner: MemoryTransport, address: str) -> MemoryConnection:
        """See `MemoryNetwork.open_connection`."""
        connection = super().open_connection(owner, address)
        listening, _, _ = address.removeprefix("memory:").rpartition("/")
        with self._count_lock:
            self._connections += 1
            self._ends.update((owner.name, listening))
        return connection

    def traffic(self) -> Traffic:
        """The count as of now."""
        with self._count_lock:
            kinds = {_NAMES[kind]: count for kind, count in self._kinds.items()}
            return Traffic(
                self._connections, self._bytes, kinds, dict(self._senders), dict(self._ends)
            )
