"""Memory that several processes write and read at the same time: what may be relied on."""

from __future__ import annotations

import platform
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

STORES_ARE_ORDERED: Final = platform.machine().lower() in ("x86_64", "amd64", "i686")
"""Whether a plain store is seen after the plain stores before it, and a plain load happens before
those after it: true of x86. Elsewhere it takes a fence: for who writes, before the word that says
that something is there; for who reads, between that word and what it speaks of; and for who has
read, before the word that gives it back."""
LOCKINGS: Final = (0,) if STORES_ARE_ORDERED else (0, 1)
"""How often a lock is to be taken and let go for a full barrier. Elsewhere loads and stores may
move into a lock from both sides, and pass each other there, but not through two."""


class Fence:
    """A full memory barrier: taking a lock and letting it go, 0.1 µs, see `LOCKINGS`.

    "Store, then read what others stored" needs one even on x86, or both sides may miss the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> None:
        for _ in LOCKINGS:
            with self._lock:  # which lets go of it also where an interrupt comes
                pass

    __enter__ = __call__

    def __exit__(self, *_error: object) -> None:
        pass


def barrier() -> AbstractContextManager[object]:
    """Returns a `Fence` to be passed by `with`; where one lock is enough, that lock, since there
    each step counts."""
    return threading.Lock() if STORES_ARE_ORDERED else Fence()
