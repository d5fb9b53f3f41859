"""What the tables of `rref.lifetime` are told (events), and what they answer (instructions).

All are values. Events say what happened on this worker, what arrived from another one, or what time
it is; instructions say what the service must do, in order. `reference` names the value, `fork` one
hold of one user on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.records import record

if TYPE_CHECKING:
    from lockstitch.ids import GlobalId, WorkerId
    from lockstitch.wire.messages import Message

DIRECT = -1
"""The serial of a fork that its owner made itself: it is counted and never claimed."""


# ---------------------------------------------------------------- events for both sides


@record
class Arrived:
    """A control message came in."""

    sender: WorkerId
    message: Message


@record
class WorkerLost:
    """That life of a worker is over; nothing more will come from it."""

    worker: WorkerId


@record
class Tick:
    """It is `now` (seconds of any clock that does not go back)."""

    now: float


@record
class Withdrawn:
    """A fork made for another worker never left, or can no longer arrive."""

    reference: GlobalId
    fork: GlobalId


# ---------------------------------------------------------------- events for the owner


@record
class Shared:
    """The owner itself puts a fork for `holder` into a message (None: it is not known for whom)."""

    reference: GlobalId
    fork: GlobalId
    holder: WorkerId | None


@record
class Called:
    """A `RemoteCall` came in: `user` wants a value made, and holds `fork` of it."""

    user: WorkerId
    reference: GlobalId
    fork: GlobalId
    serial: int


@record
class Asked:
    """A `Fetch` came in: `user` holds `fork` and wants the value."""

    user: WorkerId
    reference: GlobalId
    fork: GlobalId
    serial: int


# ---------------------------------------------------------------- events for a user


@record
class Created:
    """`remote()` was called: a `RemoteCall` is about to claim `fork` at `owner`."""

    reference: GlobalId
    fork: GlobalId
    owner: WorkerId


@record
class Settled:
    """The owner answered a request that named `fork`, hence counts it."""

    fork: GlobalId


@record
class Abandoned:
    """The `RemoteCall` that claims `fork` timed out: the owner may know of it, now or later, or
    not."""

    fork: GlobalId


@record
class Failed:
    """The `RemoteCall` that claims `fork` failed: nobody will make the value, and the objects that
    stand for the fork cannot be used."""

    fork: GlobalId


class Hold:
    """What one object of the program that stands for `fork` leaves behind when it goes. `counts`
    says whether the table counts it, which an interrupt may have kept from happening."""

    __slots__ = ("counts", "fork")

    def __init__(self, fork: GlobalId, *, counts: bool) -> None:
        self.fork = fork
        self.counts = counts


@record
class Received:
    """A message brought `fork`, which `parent` made for us; an object with that `hold` stands for
    it."""

    reference: GlobalId
    fork: GlobalId
    owner: WorkerId
    parent: WorkerId
    hold: Hold | None = None


@record
class CameHome:
    """A message brought the owner a fork of its own reference, made by the user `parent`."""

    fork: GlobalId
    parent: WorkerId


@record
class Forked:
    """The user's fork `parent` was put into a message for `to`, as the new fork `child`."""

    parent: GlobalId
    child: GlobalId
    to: WorkerId | None


@record
class Dropped:
    """The program let go of these forks."""

    forks: tuple[GlobalId, ...]


# ---------------------------------------------------------------- instructions


@record
class Send:
    """Send a control message."""

    to: WorkerId
    message: Message


@record
class Keep:
    """Owner: somebody counts on the value of `reference` now: hold it (or a place for it)."""

    reference: GlobalId


@record
class Free:
    """Owner: nobody counts on the value any more: let it go."""

    reference: GlobalId


@record
class Begin:
    """Owner: run the function of the `RemoteCall` just told; without this it came too late."""

    reference: GlobalId


@record
class Barren:
    """Owner: the worker that wanted the value made died before its call came: none will come."""

    reference: GlobalId


@record
class Confirm:
    """User: the owner counts `fork`: whatever waited for that may start."""

    fork: GlobalId


@record
class Orphan:
    """User: the owner of `fork` died, and the value with it."""

    fork: GlobalId


OwnerEvent = Arrived | WorkerLost | Tick | Withdrawn | Shared | Called | Asked
UserEvent = (
    Arrived
    | WorkerLost
    | Tick
    | Withdrawn
    | Created
    | Settled
    | Abandoned
    | Failed
    | Received
    | CameHome
    | Forked
    | Dropped
)
OwnerInstruction = Send | Keep | Free | Begin | Barren
UserInstruction = Send | Confirm | Orphan
