"""Distributed autograd: backward passes, and contexts that end.

All but the first two belong to one backward pass, named by `backward_pass`, whose creator is its
initiator. Those that may reach a worker first also say how the pass is run, by `flags`: a sum of
the numbers below.
"""

from __future__ import annotations

from typing import Final

from lockstitch.ids import GlobalId
from lockstitch.wire.messages.kinds import Message, kind
from lockstitch.wire.messages.payload import Payload, Stitch

RETAIN_GRAPH: Final = 1
"""The graph is kept for further passes."""
CREATE_GRAPH: Final = 2
"""The gradients have a history themselves."""
FAST: Final = 4
"""All that was sent takes part (PyTorch's note), and nobody asks."""
SELECTS: Final = 8
"""Only the gradients of chosen tensors are wanted, and nothing is added to the context's."""


@kind(32)
class ReleaseContext(Message):
    """The context is over: forget its records and gradients, and tell whom you told of it. Answered
    by `ContextReleased`."""

    context: int


@kind(43)
class ContextReleased(Message):
    """The context is over here too; `ReleaseContext` need not be sent again."""

    context: int


@kind(33)
class Gradient(Message):
    """Receiver → sender of the stitch `message`: the gradients of the tensors that crossed, as the
    items of `body` in their order, None where there is none. No items at all make a *null token*:
    no gradient will come. `emitted` and `consumed` are a report that rides along (see `Report`).
    `listens`: until the pass is over, its sender reads answers on the connection on which it calls
    the receiver. `stitch` names the gradients that have a history themselves."""

    context: int
    backward_pass: GlobalId
    flags: int
    listens: bool
    message: GlobalId
    emitted: tuple[GlobalId, ...]
    consumed: tuple[GlobalId, ...]
    stitch: Stitch | None
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
    """Initiator → all others: answer with your `Reach`. `listens`: as in a `Gradient`."""

    context: int
    backward_pass: GlobalId
    flags: int
    listens: bool


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
    """Initiator → all: of what you sent, these tensors of these stitches take part, no others. In a
    pass that selects, `wanted` are the tensors that you received whose gradients somebody needs."""

    context: int
    backward_pass: GlobalId
    flags: int
    parts: tuple[tuple[GlobalId, tuple[int, ...]], ...]
    wanted: tuple[tuple[GlobalId, tuple[int, ...]], ...]


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
class AskPassStatus(Message):
    """Initiator → all: answer with your `PassStatus`, for wave number `wave` (fast passes only)."""

    context: int
    backward_pass: GlobalId
    wave: int


@kind(42)
class PassStatus(Message):
    """Worker → initiator: where I stand; the fields of `autograd.termination.PassStatus`."""

    context: int
    backward_pass: GlobalId
    wave: int
    sent: int
    received: int
    is_active: bool
    waiting: tuple[GlobalId, ...]
