"""A thread that stays, for what torch should not have bound to one that ends.

Functions are compiled on threads of ours too. Torch 2.10 and 2.11, built for CUDA, do not stand
that where there is no device: the thread that compiles first owns the *guard* which stands in for
devices. All others use it, and it goes when its thread ends; the next one to compile crashes. So
what torch calls to set the guard is replaced: a thread that stays does it, when torch first wants
it. (Not before: with a guard the engine starts threads as if there were devices, and a process
that has those cannot be forked.)
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.torch_internals.compiling import replace_guard_setter
from lockstitch.versions import parse

if TYPE_CHECKING:
    from collections.abc import Callable

GUARD_THREAD: Final = "lockstitch-guard"
_GUARD_STAYS: Final = (2, 12)
"""The first torch whose guard outlives its thread. (Trying it out would crash.)"""


def keep_guard(torch: Any = torch, end: threading.Event | None = None) -> None:
    """Sees to it that what stands in for missing CUDA devices belongs to a thread that stays: the
    one that needs it first if that is the main thread, else one for this alone (until `end`, if it
    is given)."""
    known = parse(torch.__version__)
    if known is None or known >= _GUARD_STAYS or not torch.version.cuda:
        return
    if torch.cuda.device_count():
        return  # the real ones need nobody
    replace_guard_setter(_Keeper(end or threading.Event()).set, torch)


class _Keeper:
    """Has the guard set once, by a thread that stays."""

    def __init__(self, end: threading.Event) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._is_set = threading.Event()

    def set(self, set_guard: Callable[[], object]) -> None:
        """Returns when it is set."""
        if self._is_set.is_set():
            return
        with self._lock:
            if self._is_set.is_set():
                return
            if threading.current_thread() is threading.main_thread():
                set_guard()
                self._is_set.set()
            else:
                stay = partial(self._stay, set_guard)
                threading.Thread(target=stay, name=GUARD_THREAD, daemon=True).start()
                self._is_set.wait()

    def _stay(self, set_guard: Callable[[], object]) -> None:
        set_guard()
        self._is_set.set()
        self._end.wait()
