"""A timeout that a user gave travels with the call; calls nested in it inherit what remains."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Inherited(threading.local):
    deadline: float | None = None


_inherited = _Inherited()


@contextlib.contextmanager
def inherited_deadline(deadline: float) -> Iterator[None]:
    """Within, `remaining_deadline` is `deadline` (of the worker's clock)."""
    before, _inherited.deadline = _inherited.deadline, deadline
    try:
        yield
    finally:
        _inherited.deadline = before


def remaining_deadline() -> float | None:
    """The deadline of the call that this thread serves, if its user gave one."""
    return _inherited.deadline
