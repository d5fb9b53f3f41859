"""Meetings of all workers (see `rpc.quiescence`), and what members of a group
tell each other of who is in it (see `rendezvous.membership_protocol`)."""

from __future__ import annotations

from lockstitch.wire.messages.kinds import Message, kind
from lockstitch.wire.messages.payload import Stitch

MemberTuple = tuple[str, int, int, tuple[str, ...], str, int, str, int, str]
"""What members know of one of them, as `rendezvous.member_records.MemberRecord` puts it."""


@kind(48)
class Brought(Message):
    """Child → parent: the worker `name` and all below it have come to rest, after `activity`
    requests sent and served in all. (See `rpc.quiescence`.)"""

    barrier_id: str
    name: str
    activity: int


@kind(49)
class Announced(Message):
    """Parent → child: all have come, and `activities` holds the sum of what they brought. Child →
    parent: it still waits itself, for the workers in `names`."""

    barrier_id: str
    names: tuple[str, ...]
    activities: tuple[int, ...]


@kind(50)
class CalledOff(Message):
    """Sent to neighbours: the barrier does not take place; `reason` says why."""

    barrier_id: str
    reason: str


@kind(56)
class AskAdmission(Message):
    """A worker that is in no group yet → any member: may I come in, at `rank` (-1: anywhere)?
    Replied to with a plain value (see `rpc.admission`). `mark` is what it is known by again."""

    request: int
    timeout: float | None
    stitch: Stitch | None
    name: str
    rank: int
    mark: str
    addresses: tuple[str, ...]
    host: str


@kind(57)
class MembershipNotice(Message):
    """Member → member: what the sender knows of these members, with `whole` of all. It is
    answered by a `MembershipAcknowledgement`."""

    number: int
    whole: bool
    records: tuple[MemberTuple, ...]


@kind(58)
class MembershipAcknowledgement(Message):
    """The notice of that number is taken in, and need not be sent again."""

    number: int


@kind(59)
class MembershipQuery(Message):
    """Member → member: tell me all that you know, unless this is the digest of your table."""

    digest: str
