"""What a member of a group is told, and what it wants done: the vocabulary of `membership_protocol`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstitch.ids import WorkerId
    from lockstitch.rendezvous.member_records import MemberRecord

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Notice:
    """`sender` tells of these lives; with `is_whole` they are all that it knows."""

    sender: WorkerId
    number: int
    records: tuple[MemberRecord, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`sender` has taken in what was told under that number."""

    sender: WorkerId
    number: int


@dataclass(frozen=True, slots=True)
class Query:
    """`sender` wants to know what we know, unless `digest` is that of our table."""

    sender: WorkerId
    digest: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker cannot be reached any more; `has_left`: it said so itself."""

    worker: WorkerId
    cause: str
    has_left: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """Somebody wants to come in, at `rank` or anywhere (-1); the answer goes to `ticket`."""

    ticket: int
    name: str
    rank: int
    mark: str
    addresses: tuple[str, ...]
    host: str


@dataclass(frozen=True, slots=True)
class Withdrew:
    """Nobody waits for an answer to `ticket` any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """This worker leaves."""


@dataclass(frozen=True, slots=True)
class DeclaredDead:
    """Others that live hold this worker for dead."""

    cause: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Some time has passed: send again what is unanswered, compare with a neighbour."""


Event = (
    Notice | Acknowledgement | Query | Lost | DeclaredDead | Applied | Withdrew | Leaving | Ticked
)

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class Tell:
    """Send these lives; the receiver's `Acknowledgement` will bear the number."""

    to: WorkerId
    number: int
    records: tuple[MemberRecord, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Note:
    """Say that what came under that number was taken in."""

    to: WorkerId
    number: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for what that member knows, unless its table has this digest (empty: in any case)."""

    to: WorkerId
    digest: str


@dataclass(frozen=True, slots=True)
class Admit:
    """The applicant is in as `record`; everybody else in `records` knows already."""

    ticket: int
    record: MemberRecord
    records: tuple[MemberRecord, ...]


@dataclass(frozen=True, slots=True)
class Redirect:
    """That member decides, not this one."""

    ticket: int
    to: MemberRecord


@dataclass(frozen=True, slots=True)
class Refuse:
    """The applicant may not come in."""

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A life has begun or ended."""

    record: MemberRecord


@dataclass(frozen=True, slots=True)
class Excluded:
    """The others hold this worker for dead."""

    cause: str


@dataclass(frozen=True, slots=True)
class Departed:
    """Those who stay have noted that this worker leaves."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """To the eldest: another member has heard from here since the last end was seen here, so it is
    not this one that is cut off. These are all lives: what is said of them may be published."""

    records: tuple[MemberRecord, ...]


Instruction = (
    Tell | Note | Ask | Admit | Redirect | Refuse | Changed | Excluded | Departed | Confirmed
)
