"""The modes of torch that belong to code which stops in the middle and goes on later.

torch keeps grad mode, inference mode, autocast and the like for each thread. A coroutine that waits
under `torch.no_grad()` leaves its thread to others, and they must not find gradients switched off.
So whatever modes it has entered are taken from the thread when it stops, and put back when it goes
on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import torch

from lockstitch.devices import accelerators
from lockstitch.modes import are_plain, plain_modes

if TYPE_CHECKING:
    from collections.abc import Callable

_is_grad_enabled: Final = torch.is_grad_enabled
_is_autocast_enabled: Final = torch.is_autocast_enabled


class OwnModes:
    """The modes of one such piece of code: it runs between `resume` and `suspend`, which leaves the
    thread with grad mode on and no other mode."""

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo: contextlib.ExitStack | None = None
        """What gives the thread the modes in which the code has stopped; None: they are plain."""

    def resume(self) -> None:
        """The code is about to go on, on this thread."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()

    def suspend(self) -> None:
        """The code has stopped."""
        kinds = [kind for kind in accelerators.kinds() if _is_autocast_enabled(kind)]
        if not kinds and _is_grad_enabled() and are_plain():
            return
        stack = contextlib.ExitStack()
        stack.callback(torch.set_grad_enabled, _is_grad_enabled())
        for kind in kinds:
            stack.callback(_switch_off_autocast(kind))
            # Its copies of weights would stay, and others may change the weights meanwhile.
            torch.clear_autocast_cache()
        if not are_plain():
            stack.enter_context(plain_modes())
        torch.set_grad_enabled(True)
        self._undo = stack


def _switch_off_autocast(kind: str) -> Callable[[], None]:
    """Switches autocast off for a kind of device; returns what switches it on again."""
    dtype = torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, False)

    def set_again() -> None:
        torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_enabled(kind, True)

    return set_again
