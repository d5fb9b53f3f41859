"""The vocabulary: everything that one worker can say to another, as dataclasses.

kinds.py       what a message is: a record, registered under the number of its kind
payload.py     what messages carry besides plain fields: values of programs, and autograd's stitch
calls.py       requests, and their answers
peers.py       who leaves, who lives, who waits for what
references.py  who holds which reference
backward.py    backward passes, and contexts that end
groups.py      meetings of all workers, and who is one of them
stages.py      what stages of a pipeline hand to each other

A message is its class and its fields. Fields are of a few plain types only (see `wire.layouts`),
ids, and at most one `Payload`, in which the values of user programs and tensors travel. *Requests*
carry a number that their `Reply` or `Failure` repeats; *control* messages are one-way, idempotent,
and handled by the thread that reads them; everything that may run long is handed to the pool.
"""

from lockstitch.wire.messages.backward import (
    SELECTS,
    Abort,
    AskPassStatus,
    AskReach,
    BackwardFailed,
    ContextReleased,
    Gradient,
    NeedParts,
    Parts,
    PassStatus,
    Reach,
    ReleaseContext,
    Report,
)
from lockstitch.wire.messages.calls import CALLS, Call, Failure, Fetch, RemoteCall, Reply
from lockstitch.wire.messages.groups import (
    Announced,
    AskAdmission,
    Brought,
    CalledOff,
    MembershipAcknowledgement,
    MembershipNotice,
    MembershipQuery,
)
from lockstitch.wire.messages.kinds import KINDS, Message, kind
from lockstitch.wire.messages.payload import Payload, SharedPayload, Stitch
from lockstitch.wire.messages.peers import Alive, AskWaits, Cancel, Heartbeat, Leave, TellWaits
from lockstitch.wire.messages.references import (
    ChildAccept,
    ChildNoted,
    DeletionsNoted,
    ForkAccept,
    ForkRequest,
    ForksDeleted,
)
from lockstitch.wire.messages.stages import HandOver

__all__ = [
    "KINDS",
    "Message",
    "kind",
    "Payload",
    "SharedPayload",
    "Stitch",
    "CALLS",
    "Call",
    "RemoteCall",
    "Fetch",
    "Reply",
    "Failure",
    "Leave",
    "Heartbeat",
    "Alive",
    "Cancel",
    "AskWaits",
    "TellWaits",
    "ForkRequest",
    "ForkAccept",
    "ChildAccept",
    "ForksDeleted",
    "DeletionsNoted",
    "ChildNoted",
    "SELECTS",
    "ReleaseContext",
    "ContextReleased",
    "Gradient",
    "Report",
    "NeedParts",
    "AskReach",
    "Reach",
    "Parts",
    "BackwardFailed",
    "Abort",
    "AskPassStatus",
    "PassStatus",
    "Brought",
    "Announced",
    "CalledOff",
    "AskAdmission",
    "MembershipNotice",
    "MembershipAcknowledgement",
    "MembershipQuery",
    "HandOver",
]
