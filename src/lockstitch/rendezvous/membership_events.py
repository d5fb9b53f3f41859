"""The events that `membership_protocol` takes in, and the instructions that it gives out.

What two members send each other is a `Notice`, an `Acknowledgement` or a `Query`. Each is an event
on the member that has received it, and an instruction on the member that is to send it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstitch.ids import WorkerId
    from lockstitch.rendezvous.member_records import MemberRecord

# ---------------------------------------------------------------- what members send each other


@dataclass(frozen=True, slots=True)
class Notice:
    """What a member knows of some members; with `is_whole`, all that it knows.

    `peer` has sent it, or is to receive it. It is answered by an `Acknowledgement` with its
    `number`, and sent again until that has come.
    """

    peer: WorkerId
    number: int
    records: tuple[MemberRecord, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The notice with that number has been taken in, by the sender of this."""

    peer: WorkerId
    number: int


@dataclass(frozen=True, slots=True)
class Query:
    """Asks for all that the receiver knows, unless its table has this `digest` (empty: in any
    case)."""

    peer: WorkerId
    digest: str


# ---------------------------------------------------------------- events


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
    """Others that are alive hold this worker for dead."""

    cause: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Some time has passed: send again what is unanswered, compare with a neighbour."""


Event = (
    Notice | Acknowledgement | Query | Lost | DeclaredDead | Applied | Withdrew | Leaving | Ticked
)

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class Admit:
    """The applicant is in as `record`; every other member of `records` knows already."""

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
    """The life of a member has begun or ended."""

    record: MemberRecord


@dataclass(frozen=True, slots=True)
class Excluded:
    """The others hold this worker for dead."""

    cause: str


@dataclass(frozen=True, slots=True)
class Departed:
    """Those who stay have acknowledged that this worker leaves."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """For the eldest: another member has answered since the last end was seen here, so it is not
    this one that is cut off. These records of all members may be published."""

    records: tuple[MemberRecord, ...]


Instruction = (
    Notice
    | Acknowledgement
    | Query
    | Admit
    | Redirect
    | Refuse
    | Changed
    | Excluded
    | Departed
    | Confirmed
)
