"""Control messages that still want their answer, and when each is to be sent again.

A message is sent once by whoever puts it in; from the next tick on it is repeated, after half a
second, then one, two … up to thirty, until it is settled. Time is a number given with each tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from lockstitch.ids import WorkerId
    from lockstitch.rref.events import Send

FIRST_RETRY_SECONDS: Final = 0.5
LAST_RETRY_SECONDS: Final = 30.0


@dataclass(slots=True)
class _Unanswered:
    send: Send
    pause: float = FIRST_RETRY_SECONDS
    due: float | None = None
    """None until the first tick after it was put in."""


class Outbox:
    """Unanswered messages by a key of the caller's choice."""

    def __init__(self) -> None:
        self._letters: dict[Hashable, _Unanswered] = {}

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, key: Hashable, send: Send) -> Send:
        """Repeats `send` until `settle(key)`; returns it, for the first sending."""
        self._letters[key] = _Unanswered(send)
        return send

    def settle(self, key: Hashable) -> bool:
        """The answer is there, or wanted no more. False if nothing waited under `key`."""
        return self._letters.pop(key, None) is not None

    def forget(self, worker: WorkerId) -> None:
        """Drops all messages to `worker`."""
        for key in [
            key for key, unanswered in self._letters.items() if unanswered.send.to == worker
        ]:
            del self._letters[key]

    def tick(self, now: float) -> list[Send]:
        """Returns the messages that are to be sent again now."""
        again: list[Send] = []
        for unanswered in self._letters.values():
            if unanswered.due is None:
                unanswered.due = now + unanswered.pause
            elif unanswered.due <= now:
                unanswered.pause = min(2 * unanswered.pause, LAST_RETRY_SECONDS)
                unanswered.due = now + unanswered.pause
                again.append(unanswered.send)
        return again
