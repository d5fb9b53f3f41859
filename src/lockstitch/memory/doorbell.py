"""Sleeping until another process has written something into shared memory, and never missing it.

Whoever waits may look into the memory again and again; after a while it sleeps on a descriptor
instead. One word of the memory says of each waiter whether the others have to wake it:

    the waiter                             who writes something for it
    1  announces: its word says ASLEEP     1  writes
    2  passes a fence                      2  passes a fence
    3  looks once more                     3  reads the waiter's word
    4  sleeps, if nothing has come         4  wakes the waiter, unless the word says AWAKE
    5  withdraws: its word says AWAKE

Both store first and look afterwards, with a fence in between. So at least one of the two sees what
the other has stored: the waiter sees what was written and does not sleep, or the writer sees the
announcement and wakes it. What wakes must last until it is taken, as a byte in a socket or a count
in an eventfd does: the waiter may not have come to step 4 yet. To be woken in vain does no harm,
since whoever wakes up looks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from lockstitch.fences import barrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

AWAKE: Final = 0
ASLEEP: Final = 1
"""A waiter that sleeps. Any other number but `AWAKE` says so too, and may tell what for."""


class Doorbell:
    """The words of all who may sleep, in memory that all of them see; a waiter is the index of its
    word. What wakes a waiter is its user's affair.

    An interrupt (Ctrl-C) may strike wherever a function is entered or has returned. Whoever must
    not be interrupted between two steps stores into its word itself.
    """

    __slots__ = ("_fence", "_words")

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._fence = barrier()

    # ------------------------------------------------------------ for the waiter

    def announce_sleep(self, waiter: int) -> None:
        """Steps 1 and 2: from now on others wake this waiter. It is to look once more."""
        self._words[waiter] = ASLEEP
        with self._fence:
            pass

    def sleep_unless(
        self,
        waiter: int,
        has_come: Callable[[], bool],
        sleep: Callable[[], T],
        reason: int = ASLEEP,
    ) -> T | None:
        """Takes all five steps: sleeps by `sleep()`, unless what is waited for `has_come()`.
        Returns what `sleep` has returned, or None where it was not called."""
        words = self._words
        words[waiter] = reason
        try:
            with self._fence:
                pass
            return None if has_come() else sleep()
        finally:
            words[waiter] = AWAKE

    def is_asleep(self, waiter: int) -> bool:
        """Whether the waiter sleeps, or is about to. Not for whoever has just written something:
        that is `reason` or `sleepers`."""
        return bool(self._words[waiter])

    # ------------------------------------------------------------ for whoever has written something

    def reason(self, waiter: int) -> int:
        """Steps 2 and 3 for one waiter: why it sleeps, or `AWAKE`."""
        with self._fence:
            pass
        return self._words[waiter]

    def sleepers(self, waiters: Iterable[int]) -> list[int]:
        """Steps 2 and 3 for several waiters: those of them that are to be woken."""
        with self._fence:
            pass
        words = self._words
        return [waiter for waiter in waiters if words[waiter]] if any(words) else []
