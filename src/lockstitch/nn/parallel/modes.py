"""What a thread takes over from the one for which it works.

torch keeps grad mode, autocast and the like for each thread; a slot that runs the caller's module
has to run it as the caller would.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.modes import Modes as Modes

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")


def in_callers_modes(function: Callable[..., R]) -> Callable[..., R]:
    """`function`, to be called by another thread as if this one did: with its modes and its context
    variables."""
    modes = Modes.of_this_thread()
    context = contextvars.copy_context()

    def call(*args: Any) -> R:
        with modes.active():
            return function(*args)

    return lambda *args: context.copy().run(call, *args)
