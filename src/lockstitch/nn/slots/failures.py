"""What a slot raises, on its way to the caller: as what it was, with the slot's name and the
traceback within the slot as its cause, in the words of the original.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle

from lockstitch.errors import add_note, format_error, set_attribute, text_of, traceback_of
from lockstitch.imports import loads
from lockstitch.interrupts import OWN_ERRORS_IGNORED
from lockstitch.runtime.remote_errors import RemoteTraceback


@dataclass(frozen=True)
class Failure:
    """An exception raised in a slot. Can be pickled."""

    slot: str
    kind: str
    message: str
    text: str
    """Its traceback."""
    pickled: bytes | None
    """The exception and its type; None where they cannot be pickled."""
    original: BaseException | None = None
    """The exception itself, where it need not cross to another process."""

    def error(self) -> BaseException:
        """The exception to raise at the caller."""
        story = f"Caught {self.kind} in {self.slot}.\nOriginal {self.text}"
        error = self.original if self.original is not None else self._rebuild(story)
        set_attribute(error, "__cause__", RemoteTraceback(story))
        add_note(error, f"raised in {self.slot}")
        return error

    def _rebuild(self, story: str) -> BaseException:
        kind: Any = RuntimeError
        if self.pickled is not None:
            with OWN_ERRORS_IGNORED:  # constructors of users' exceptions raise anything
                kind, pickled = loads(self.pickled)
                if pickled is not None:
                    error = loads(pickled)
                    if isinstance(error, Exception):
                        return error
                return kind(story)  # type: ignore[no-any-return]
        return RuntimeError(story)


def describe(error: BaseException, slot: str, *, crosses: bool) -> Failure:
    """What is to be told of `error`; `crosses`: to another process."""
    text = format_error(error, traceback_of(error))
    kind = type(error).__qualname__
    message = text_of(error)
    if not crosses:
        return Failure(slot, kind, message, text, None, error)
    # What ends a process or a thread is not to end the caller's.
    whole = _dumps(error) if isinstance(error, Exception) else None
    named = type(error) if isinstance(error, Exception) else RuntimeError
    return Failure(slot, kind, message, text, _dumps((named, whole)))


def _dumps(value: object) -> bytes | None:
    for dumps in (pickle.dumps, cloudpickle.dumps):
        with OWN_ERRORS_IGNORED:  # whatever a __reduce__ raises: the text goes in any case
            return dumps(value, 5)
    return None
