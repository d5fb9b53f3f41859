"""Within a slot a `DataParallel` has no slots of its own: it runs its module plainly.

A context variable, and not a thread's: what a slot calls on other threads belongs to the slot too.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_IS_INSIDE: Final[ContextVar[bool]] = ContextVar("lockstitch_is_inside_slot", default=False)


def is_inside() -> bool:
    """Whether this code runs in a slot, the caller's own included."""
    return _IS_INSIDE.get()


def mark_inside() -> None:
    """What this context runs from now on runs in a slot."""
    _IS_INSIDE.set(True)


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """The block runs in slot 0."""
    token = _IS_INSIDE.set(True)
    try:
        yield
    finally:
        _IS_INSIDE.reset(token)
