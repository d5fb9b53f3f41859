"""The vocabulary: everything that one worker can say to another, as dataclasses.

A message is its class and its fields. Fields are of a few plain types only (see `wire.codec`), ids,
and at most one `Payload`, in which the values of user programs and tensors travel. *Requests* carry
a number that their `Reply` or `Failure` repeats; *control* messages are one-way, idempotent, and
handled by the thread that reads them; everything that may run long is handed to the pool.

Kinds are numbers of the protocol: never reuse one. Those from 6 to 9 are of the first words on a
connection, which are no messages (`transport.greetings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

from lockstitch.ids import GlobalId, WorkerId
from lockstitch.records import dataclass_transform, record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

KINDS: dict[int, type[Message]] = {}
"""Kind number → message class; filled by `kind`."""

_M = TypeVar("_M", bound="Message")


@dataclass_transform(frozen_default=True)
def kind(number: int) -> Callable[[type[_M]], type[_M]]:
    """Makes a record of a message class and registers it under its number in the protocol."""

    def register(cls: type[_M]) -> type[_M]:
        if number in KINDS:
            raise ValueError(f"kind {number} is taken by {KINDS[number].__name__}")
        message = record(cls)
        message.KIND = number
        KINDS[number] = message
        return message

    return register


class Message:
    """Base of all messages."""

    __slots__ = ()
    KIND: ClassVar[int]


class Payload(NamedTuple):
    """Values on their way: a stream of bytes, and what was lifted out of it.

    `items` are tensors and out-of-band buffers (`memoryview`s) in the order in which they were met;
    the stream refers to them by that order. `encoding` says how the stream was made (see
    `wire.encodings`).
    """

    encoding: int
    stream: bytes | memoryview
    items: Sequence[torch.Tensor | memoryview | None]


class Stitch(NamedTuple):
    """What distributed autograd adds to a message (plain values only).

    `context` is the context id; `message` names the pair of send and receive, None where no tensor
    of the message takes part; `tensors` are the indices of the items that do; `workers` are the
    workers of the context that the receiver may not know yet, as (rank, generation).
    """

    context: int
    message: GlobalId | None
    tensors: tuple[int, ...]
    workers: tuple[WorkerId, ...]


# ---------------------------------------------------------------- requests and their answers


@kind(1)
class Call(Message):
    """Run `function` on the arguments in `body` and reply with what it returns.

    `function` is the sender's number for a function; `definition` spells it out on first use
    (a qualified name, or a closure by value). `timeout` is what remains of a timeout that the
    user gave, in seconds, for nested calls to inherit.
    """

    request: int
    function: int
    definition: bytes | None
    timeout: float | None
    stitch: Stitch | None
    body: Payload


@kind(2)
class RemoteCall(Message):
    """Like `Call`, but the owner keeps the value under `reference`, used by the caller's `fork`.

    `serial` is the number of the caller's claim to `fork`, as in `ForkRequest`.
    """

    request: int
    function: int
    definition: bytes | None
    timeout: float | None
    stitch: Stitch | None
    reference: GlobalId
    fork: GlobalId
    serial: int
    body: Payload


CALLS: Final = (Call, RemoteCall)
"""The messages that bring arguments."""


@kind(3)
class Fetch(Message):
    """Reply with the value of `reference` once it exists. Claims `fork`, as `ForkRequest` does."""

    request: int
    reference: GlobalId
    fork: GlobalId
    serial: int
    timeout: float | None
    stitch: Stitch | None


@kind(4)
class Reply(Message):
    """The answer to request number `request`."""

    request: int
    stitch: Stitch | None
    body: Payload


@kind(5)
class Failure(Message):
    """Request number `request` ended in the exception in `body`."""

    request: int
    body: Payload


# ---------------------------------------------------------------- leaving


@kind(10)
class Leave(Message):
    """The sender shuts down: what still waits for it will not be answered."""

    worker: WorkerId


@kind(6)
class Heartbeat(Message):
    """Are you there? Answered by `Alive` with the same `number`, on the same connection."""

    number: int


@kind(7)
class Alive(Message):
    """The sender lives, and reads."""

    number: int


@kind(11)
class Cancel(Message):
    """Caller → callee: the time of `request` is over; do not begin it any more."""

    request: int


# ---------------------------------------------------------------- looking inside


@kind(12)
class AskWaits(Message):
    """What do you wait for? Answered by `TellWaits` with the same `question`."""

    question: GlobalId


@kind(13)
class TellWaits(Message):
    """The sender waits for these; the fields are those of `runtime.waits.WorkerWaits`."""

    question: GlobalId
    name: str
    calls: tuple[tuple[str, str, float], ...]
    serving: tuple[tuple[str, str, float, str], ...]
    others: tuple[str, ...]


# ---------------------------------------------------------------- references (see rref.lifetime)


@kind(16)
class ForkRequest(Message):
    """User → owner: I hold `fork` of `reference`; count it and answer `ForkAccept`.

    `serial` numbers the claims of one user, in the order in which it makes them.
    """

    reference: GlobalId
    fork: GlobalId
    serial: int


@kind(17)
class ForkAccept(Message):
    """Owner → user: `fork` is counted."""

    fork: GlobalId


@kind(18)
class ChildAccept(Message):
    """Child, or owner → parent: `fork` is counted, its parent may go (G2); answer `ChildNoted`."""

    fork: GlobalId


@kind(19)
class ForksDeleted(Message):
    """User → owner: these forks are gone (G1), pairs (reference, fork); answer `DeletionsNoted`.

    All claims of the user with a serial below `floor` are over and done: one that still comes in
    was sent before, and is a repetition or too late.
    """

    batch: int
    floor: int
    forks: tuple[tuple[GlobalId, GlobalId], ...]


@kind(20)
class DeletionsNoted(Message):
    """Owner → user: the deletions of `batch` are noted and need not be sent again."""

    batch: int


@kind(21)
class ChildNoted(Message):
    """Parent → child, or owner: the acceptance of `fork` is noted and need not be sent again."""

    fork: GlobalId


# ---------------------------------------------------------------- distributed autograd
#
# All but the first belong to one backward pass, named by `backward_pass`, whose creator is its
# initiator. Those that may reach a worker first also say how the pass is run: `retain_graph`, and
# `fast` (PyTorch's note) or smart.


@kind(32)
class ReleaseContext(Message):
    """The context is over: forget its records and gradients, and tell whom you told of it. Answered
    by `ContextReleased`."""

    context: int


@kind(33)
class Gradient(Message):
    """Receiver → sender of the stitch `message`: the gradients of the tensors that crossed, as the
    items of `body` in their order, None where there is none. No items at all make a *null token*:
    no gradient will come. `emitted` and `consumed` are a report that rides along (see `Report`).
    `listens`: until the pass is over, its sender reads answers on the connection on which this
    came."""

    context: int
    backward_pass: GlobalId
    retain_graph: bool
    fast: bool
    listens: bool
    message: GlobalId
    emitted: tuple[GlobalId, ...]
    consumed: tuple[GlobalId, ...]
    body: Payload


@kind(34)
class Report(Message):
    """Participant → initiator: gradients of these stitches were emitted and consumed, and what the
    consumption gave to leaves is stored."""

    context: int
    backward_pass: GlobalId
    emitted: tuple[GlobalId, ...]
    consumed: tuple[GlobalId, ...]


@kind(35)
class NeedParts(Message):
    """Participant → initiator: I cannot go on without knowing which stitches take part."""

    context: int
    backward_pass: GlobalId


@kind(36)
class AskReach(Message):
    """Initiator → all: answer with your `Reach`."""

    context: int
    backward_pass: GlobalId
    retain_graph: bool
    fast: bool


@kind(37)
class Reach(Message):
    """Worker → initiator: which tensors received here lie below those sent from here; the two
    fields are those of `autograd.discovery.Reach`."""

    context: int
    backward_pass: GlobalId
    received: tuple[tuple[GlobalId, int], ...]
    sent: tuple[tuple[GlobalId | None, tuple[bytes, ...]], ...]


@kind(38)
class Parts(Message):
    """Initiator → all: of what you sent, these tensors of these stitches take part, no others."""

    context: int
    backward_pass: GlobalId
    retain_graph: bool
    fast: bool
    parts: tuple[tuple[GlobalId, tuple[int, ...]], ...]


@kind(39)
class BackwardFailed(Message):
    """Participant → initiator: my part ended in the exception that `body` describes; `text` is what
    it says, in case that the exception cannot be rebuilt."""

    context: int
    backward_pass: GlobalId
    text: str
    body: Payload


@kind(40)
class Abort(Message):
    """Initiator → all: the pass has failed, free whatever waits for it."""

    context: int
    backward_pass: GlobalId


@kind(41)
class AskStanding(Message):
    """Initiator → all: answer with your `Standing`, for wave number `wave` (fast passes only)."""

    context: int
    backward_pass: GlobalId
    wave: int


@kind(42)
class Standing(Message):
    """Worker → initiator: where I stand; the fields of `autograd.termination.Standing`."""

    context: int
    backward_pass: GlobalId
    wave: int
    sent: int
    received: int
    is_active: bool
    waiting: tuple[GlobalId, ...]


# ---------------------------------------------------------------- meetings (see rpc.meetings)


@kind(48)
class Brought(Message):
    """Child → parent: the worker `name` and all below it have come to rest, after `activity`
    requests sent and served in all. (See `rpc.meetings`.)"""

    meeting: str
    name: str
    activity: int


@kind(49)
class Announced(Message):
    """Parent → child: all have come, and `activities` holds the sum of what they brought. Child →
    parent: it still waits itself, for the workers in `names`."""

    meeting: str
    names: tuple[str, ...]
    activities: tuple[int, ...]


@kind(50)
class CalledOff(Message):
    """To neighbours: the meeting does not take place; `reason` says why."""

    meeting: str
    reason: str


# ---------------------------------------------------------------- membership (rendezvous.circle)


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
class Tidings(Message):
    """Member → member: what I know of these lives (`rendezvous.lives.Life.plain`), with `whole` of
    all; answer `TidingsNoted`."""

    number: int
    whole: bool
    lives: tuple[tuple[str, int, int, tuple[str, ...], str, int, str, int, str], ...]


@kind(58)
class TidingsNoted(Message):
    """The tidings of that number are taken in, and need not be sent again."""

    number: int


@kind(59)
class AskTidings(Message):
    """Member → member: tell me all that you know, unless this is the digest of your table."""

    digest: str


@kind(43)
class ContextReleased(Message):
    """The context is over here too; `ReleaseContext` need not be sent again."""

    context: int
