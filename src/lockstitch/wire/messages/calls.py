"""Requests, and their answers."""

from __future__ import annotations

from typing import Final

from lockstitch.ids import GlobalId
from lockstitch.wire.messages.kinds import Message, kind
from lockstitch.wire.messages.payload import Payload, Stitch


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
