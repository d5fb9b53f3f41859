"""What messages carry besides plain fields: values of programs, and autograd's stitch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lockstitch.ids import GlobalId, WorkerId

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lockstitch.memory.host_copies import HostCopies


class Payload(NamedTuple):
    """Values on their way: a stream of bytes, and what was extracted from it.

    `items` are tensors and out-of-band buffers (`memoryview`s) in the order in which they were met;
    the stream refers to them by that order. `encoding` says how the stream was made (see
    `wire.encodings`).
    """

    encoding: int
    stream: bytes | memoryview
    items: Sequence[torch.Tensor | memoryview | None]


class SharedPayload(Payload):
    """A payload that goes to several workers: what is large in it is copied once for each host."""

    copies: HostCopies


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
