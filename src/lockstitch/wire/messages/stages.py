"""Pipelines: what the stages of a model hand to each other."""

from __future__ import annotations

from lockstitch.ids import GlobalId
from lockstitch.wire.messages.kinds import Message, kind
from lockstitch.wire.messages.payload import Payload


@kind(64)
class HandOver(Message):
    """A value for the worker that has a stage, in the step that is named `step`. `port` says which:
    "F", inputs, or "B", gradients of outputs, of the stage and the micro-batch; or "S", of the skip
    connection `number`, from the stage `origin`."""

    step: GlobalId
    port: str
    stage: int
    micro_batch: int
    number: int
    origin: int
    body: Payload
