"""A worker's part of a context as others see it: what was sent, and what that was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lockstitch.attach.values import ContextReport, SentTensors
from lockstitch.autograd.discovery import find_reach
from lockstitch.autograd.stitch import RECEIVE_NODE
from lockstitch.torch_internals.autograd import input_metadata

if TYPE_CHECKING:
    from collections.abc import Collection

    from lockstitch.autograd.context import DistAutogradContext, Send
    from lockstitch.ids import GlobalId
    from lockstitch.torch_internals.autograd import Node


def report_context(context: DistAutogradContext) -> ContextReport:
    """Returns what the context has recorded on this worker. Runs nothing, and waits for nobody."""
    passes = list(context.passes.values())
    awaited = {message for each in passes for message in each.status().waiting}
    arrived = {message for each in passes for message in each.arrived()}
    sends = context.sends
    made_of = _made_of(sends)
    return ContextReport(
        context.id,
        tuple(
            SentTensors(
                name_of(send.message),
                send.destination.rank,
                tuple(_describe(alias) for alias in send.aliases),
                made_of[send.message],
                _state(send.message, awaited, arrived),
            )
            for send in sends
        ),
        len(context.gradients),
    )


def name_of(message: GlobalId) -> str:
    """Returns the name of a stitch: `3.17` is the 17th of rank 3, `3'1.17` that of a later life."""
    life = f"'{message.generation}" if message.generation else ""
    return f"{message.rank}{life}.{message.counter}"


def _made_of(sends: list[Send]) -> dict[GlobalId | None, tuple[str, ...]]:
    reach = find_reach([send.entry() for send in sends], RECEIVE_NODE)
    below: dict[GlobalId | None, tuple[str, ...]] = {}
    for message, masks in reach.sent:
        every = 0
        for mask in masks:
            every |= int.from_bytes(mask, "little")
        received = [each for bit, (each, _) in enumerate(reach.received) if every >> bit & 1]
        below[message] = tuple(name_of(each) for each in dict.fromkeys(received))
    return below


def _describe(alias: Node) -> str:
    (metadata,) = input_metadata(alias)[:1]
    shape = " × ".join(map(str, metadata.shape)) or "scalar"
    return f"{str(metadata.dtype).removeprefix('torch.')} {shape}"


def _state(
    message: GlobalId, awaited: Collection[GlobalId], arrived: Collection[GlobalId]
) -> Literal["", "arrived", "awaited"]:
    if message in awaited:
        return "awaited"
    return "arrived" if message in arrived else ""
