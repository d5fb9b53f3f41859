"""The vocabulary: everything that one worker can say to another, as frozen dataclasses.

A message is its class and its fields. Fields are of a few plain types only (see `wire.codec`), ids,
and at most one `Payload`, in which the values of user programs and tensors travel. *Requests* carry
a number that their `Reply` or `Failure` repeats; *control* messages are one-way, idempotent, and
handled by the thread that reads them; everything that may run long is handed to the pool.

Kinds are numbers of the protocol: never reuse one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from lockstitch.ids import GlobalId, WorkerId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

KINDS: dict[int, type[Message]] = {}
"""Kind number → message class; filled by `kind`."""

_M = TypeVar("_M", bound="Message")


def kind(number: int) -> Callable[[type[_M]], type[_M]]:
    """Registers a message class under its number in the protocol."""

    def register(cls: type[_M]) -> type[_M]:
        if number in KINDS:
            raise ValueError(f"kind {number} is taken by {KINDS[number].__name__}")
        cls.KIND = number
        KINDS[number] = cls
        return cls

    return register


class Message:
    """Base of all messages."""

    __slots__ = ()
    KIND: ClassVar[int]


class Payload(NamedTuple):
    """Values on their way: a stream of bytes, and what was lifted out of it.

    `items` are tensors and out-of-band buffers (`memoryview`s) in the order in which they were met;
    the stream refers to them by that order. `encoding` says how the stream was made (`wire.pickling`).
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
@dataclass(frozen=True, slots=True)
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
@dataclass(frozen=True, slots=True)
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


@kind(3)
@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """Reply with the value of `reference` once it exists. Claims `fork` too, as `ForkRequest` does."""

    request: int
    reference: GlobalId
    fork: GlobalId
    serial: int
    timeout: float | None
    stitch: Stitch | None


@kind(4)
@dataclass(frozen=True, slots=True)
class Reply(Message):
    """The answer to request number `request`."""

    request: int
    stitch: Stitch | None
    body: Payload


@kind(5)
@dataclass(frozen=True, slots=True)
class Failure(Message):
    """Request number `request` ended in the exception in `body`."""

    request: int
    body: Payload


# ---------------------------------------------------------------- greeting and leaving


@kind(8)
@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First on every connection: who calls, and what it runs on."""

    protocol: int
    python: str
    torch: str
    name: str
    worker: WorkerId


@kind(9)
@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """The listener's answer to `Hello`; `refusal` is empty, or says why the caller may not come in."""

    refusal: str
    name: str
    worker: WorkerId


@kind(10)
@dataclass(frozen=True, slots=True)
class Leave(Message):
    """The sender shuts down: what still waits for it will not be answered."""

    worker: WorkerId


# ---------------------------------------------------------------- references (see rref.lifetime)


@kind(16)
@dataclass(frozen=True, slots=True)
class ForkRequest(Message):
    """User → owner: I hold `fork` of `reference`; count it and answer `ForkAccept`.

    `serial` numbers the claims of one user, in the order in which it makes them.
    """

    reference: GlobalId
    fork: GlobalId
    serial: int


@kind(17)
@dataclass(frozen=True, slots=True)
class ForkAccept(Message):
    """Owner → user: `fork` is counted."""

    fork: GlobalId


@kind(18)
@dataclass(frozen=True, slots=True)
class ChildAccept(Message):
    """Child, or owner → parent: `fork` is counted, so its parent may go (G2); answer `ChildNoted`."""

    fork: GlobalId


@kind(19)
@dataclass(frozen=True, slots=True)
class ForksDeleted(Message):
    """User → owner: these forks are gone (G1), as pairs (reference, fork); answer `DeletionsNoted`.

    All claims of the user with a serial below `floor` are over and done: one that still comes in
    was sent before, and is a repetition or too late.
    """

    batch: int
    floor: int
    forks: tuple[tuple[GlobalId, GlobalId], ...]


@kind(20)
@dataclass(frozen=True, slots=True)
class DeletionsNoted(Message):
    """Owner → user: the deletions of `batch` are noted and need not be sent again."""

    batch: int


@kind(21)
@dataclass(frozen=True, slots=True)
class ChildNoted(Message):
    """Parent → child, or owner: the acceptance of `fork` is noted and need not be sent again."""

    fork: GlobalId


# ---------------------------------------------------------------- distributed autograd


@kind(32)
@dataclass(frozen=True, slots=True)
class ReleaseContext(Message):
    """The context is over: forget its records and gradients, and tell whom you told of it."""

    context: int


@kind(33)
@dataclass(frozen=True, slots=True)
class Gradient(Message):
    """The gradients of the tensors that crossed as stitch `message`, in their order; `body` decodes
    to a tuple with None where there is none, and to None as a whole for a *null token*."""

    context: int
    backward_pass: GlobalId
    initiator: WorkerId
    message: GlobalId
    body: Payload
