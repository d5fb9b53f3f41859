"""What a launcher and a worker say to each other, as JSON: never as a pickle."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from lockstitch.ids import WorkerInfo
from lockstitch.link.codec import Codec


class UpdateKind(enum.IntFlag):
    """What has happened to the workers, with Horovod's numbers."""

    NOTHING = 0
    REMOVED = 1
    ADDED = 2
    MIXED = 3


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker: it is in no world (any more) and wants a place in the next."""

    port: int = 0
    """Of its host: there it can await the others, should it be rank 0 and they on other hosts."""


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """Launcher: a place in a new world, whose ranks meet at a store of their own. (Which, the table
    of places does not know.)"""

    generation: int
    rank: int
    size: int
    store: str


@dataclass(frozen=True, slots=True)
class Update:
    """Launcher: workers wait to come in, or are to go. `number` grows from one to the next."""

    number: int
    kind: int


@dataclass(frozen=True, slots=True)
class Void:
    """Launcher: a rank of that world has died. Who is in it sees that without being told; this is
    for those who still wait to meet it."""

    generation: int


@dataclass(frozen=True, slots=True)
class Over:
    """Launcher: there will be no place for this worker any more."""

    reason: str


Message = Ready | RankAssignment | Update | Void | Over

LAUNCHER: Final = WorkerInfo("launcher", 0)
"""Who greets workers. (A worker has the name and the number that `worker_info` gives it.)"""
MOST_BYTES: Final = 1 << 16
"""No message is longer."""

CODEC: Final[Codec[Message]] = Codec(
    Ready, RankAssignment, Update, Void, Over, complaint="not a message of the board"
)
"""The messages as bytes, and back; raises `RemoteProtocolError` for what is none."""


def worker_info(worker: int) -> WorkerInfo:
    """Who greets the launcher."""
    return WorkerInfo(f"worker{worker}", worker)
