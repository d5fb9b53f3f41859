"""A timeout that a user gave travels with the call; calls nested in it inherit what remains."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Inherited(threading.local):
    deadline: float | None = None


INHERITED: Final = _Inherited()
"""Its `deadline` is that of the call that this thread serves, if its user gave one."""


@contextlib.contextmanager
def inherited_deadline(deadline: float) -> Iterator[None]:
    """Within, the deadline of `INHERITED` is `deadline` (of the worker's clock)."""
    before, INHERITED.deadline = INHERITED.deadline, deadline
    try:
        yield
    finally:
        INHERITED.deadline = before
