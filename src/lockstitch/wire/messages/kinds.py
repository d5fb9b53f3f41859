"""What a message is: a record, registered under the number of its kind.

Kinds are numbers of the protocol: never reuse one. Those from 6 to 9 are also of the first words on
a connection, which are no messages (`link.greetings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lockstitch.records import dataclass_transform, record

if TYPE_CHECKING:
    from collections.abc import Callable


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
    KIND = 0
    """The number of the class; 0 is that of none."""
