"""A thread that stays, for what torch should not have bound to one that ends.

Functions are compiled on threads of ours too. Torch 2.10 and 2.11, built for CUDA, do not stand
that where there is no device: the thread that compiles first owns the *guard* which stands in for
devices. All others use it, and it goes when its thread ends; the next one to compile crashes. So a
thread that stays gets the guard before anybody compiles.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.torch_internals.compiling import set_guard
from lockstitch.versions import parse

if TYPE_CHECKING:
    from collections.abc import Callable

GUARD_THREAD: Final = "lockstitch-guard"
_GUARD_STAYS: Final = (2, 12)
"""The first torch whose guard outlives its thread. (Trying it out would crash.)"""


def keep_guard(
    torch: Any = torch,
    end: threading.Event | None = None,
    set_guard: Callable[[], object] = set_guard,
) -> None:
    """Sees to it that what stands in for missing CUDA devices belongs to a thread that stays: this
    one if it is the main thread, else one for this alone (until `end`, if it is given)."""
    known = parse(torch.__version__)
    if known is None or known >= _GUARD_STAYS or not torch.version.cuda:
        return
    if torch.cuda.device_count():
        return  # the real ones need nobody
    if threading.current_thread() is threading.main_thread():
        set_guard()
        return
    is_set, is_over = threading.Event(), end or threading.Event()

    def stay() -> None:
        set_guard()
        is_set.set()
        is_over.wait()

    threading.Thread(target=stay, name=GUARD_THREAD, daemon=True).start()
    is_set.wait()
