"""What workers tell each other about themselves: who leaves, who lives, who waits for what."""

from __future__ import annotations

from lockstitch.ids import GlobalId, WorkerId
from lockstitch.wire.messages.kinds import Message, kind


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
    """Asks what the receiver waits for. It answers by `TellWaits` with the same `question`."""

    question: GlobalId


@kind(13)
class TellWaits(Message):
    """What the sender waits for, as `observe.wait_reports` writes it."""

    question: GlobalId
    report: bytes
