"""The messages between a launcher and a worker, as JSON: never as a pickle."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal

from lockstitch.ids import WorkerInfo
from lockstitch.link.codec import Codec


class UpdateKind(enum.IntFlag):
    """What has happened to the workers of a job, with Horovod's numbers."""

    NOTHING = 0
    REMOVED = 1
    ADDED = 2
    MIXED = 3


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: it is in no world (any more) and wants a rank in the next."""

    port: int = 0
    """A port of its host, at which it can await the others, should it be rank 0 and they on other
    hosts."""


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """From the launcher: a rank in a new world, whose ranks meet at a store of their own. (The rank
    coordinator leaves `store` empty: it does not know which.)"""

    generation: int
    rank: int
    size: int
    store: str


@dataclass(frozen=True, slots=True)
class Update:
    """From the launcher: workers wait to come in, or are to go. `number` grows from one update to
    the next."""

    number: int
    kind: int


@dataclass(frozen=True, slots=True)
class Void:
    """From the launcher: a rank of that world has died. Those that are in it see that without being
    told; this is for those that still wait to meet it."""

    generation: int


@dataclass(frozen=True, slots=True)
class Over:
    """From the launcher: there will be no rank for this worker any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """From a worker: something to be done with one key of the job's store (`values`). `number`
    comes back in the reply; bytes are written as the characters of the same numbers (Latin-1)."""

    number: int
    operation: Literal["get", "set", "compare_set", "add", "delete"]
    key: str
    value: str = ""
    expected: str = ""


@dataclass(frozen=True, slots=True)
class StoreReply:
    """From the launcher: what came of the request of that number; None where there is no value."""

    number: int
    value: str | None


Message = Ready | RankAssignment | Update | Void | Over | StoreRequest | StoreReply

LAUNCHER: Final = WorkerInfo("launcher", 0)
"""The launcher, as it greets workers."""
MOST_BYTES: Final = 1 << 20
"""The length of the longest message, in bytes: an entry of the store that names thousands of
workers."""

CODEC: Final[Codec[Message]] = Codec(
    *(Ready, RankAssignment, Update, Void, Over, StoreRequest, StoreReply),
    complaint="not a message of the board",
)
"""Turns messages into bytes and back; raises `RemoteProtocolError` for what is none."""


def worker_info(worker: int) -> WorkerInfo:
    """Returns the worker with that number, as it greets the launcher."""
    return WorkerInfo(f"worker{worker}", worker)
