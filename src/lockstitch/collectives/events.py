"""What a session tells those who look on: steps of operations, and operations that stall."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.requests import Kind


class Step(enum.Enum):
    """How far an operation has come on this rank."""

    SUBMITTED = "submitted"
    """This rank has asked for it: negotiation begins."""
    READY = "ready"
    """All ranks have asked for it: the work begins."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """An operation has reached a step, at a time of the session's clock (seconds)."""

    name: str
    kind: Kind
    step: Step
    at: float
    process_set: int


@dataclass(frozen=True, slots=True)
class Stall:
    """An operation that this rank has submitted waits for other ranks."""

    name: str
    kind: Kind
    waited_seconds: float
    missing_ranks: tuple[int, ...]
    """Who has not submitted it yet; empty when that is not known here."""
    process_set: int


@dataclass(slots=True)
class Observers:
    """Functions that a session tells of its progress. They are called in whatever thread does the
    work and must not wait, submit or raise."""

    progress: Callable[[Progress], None] | None = None
    stall: Callable[[Stall], None] | None = None
    ended: Callable[[BaseException], None] | None = None
    """The session has ended, and why."""
    failed: Callable[[Handle[Any], BaseException], None] | None = None
    """An operation has failed, and why, whether or not somebody waits for it."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts since the session began, on this rank."""

    backend: str
    submitted: int
    completed: int
    failed: int
    under_way: int
    negotiation_bytes: int
    """What this rank has told others about its operations, tensors not counted."""
    tensor_bytes: int
    """The sizes of all tensors that this rank has submitted."""
    process_sets: int
