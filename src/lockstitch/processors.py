"""On which processor a thread runs, which others are idle, and moving to one of them.

Who waits by looking into memory and yields the processor in between never sleeps. The kernel then
sees threads that always want to run and have always just run, and may leave all of them on one
processor for seconds, with another one idle. It is they who know better: so they move.

To move changes nothing for good: what a thread may run on is the same afterwards, and the kernel
may move it again. A thread that may run on one processor only has nowhere to go.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# The kernel counts idle time in hundredths of a second.
_SHORTEST_LOOK_SECONDS: Final = 40e-3
_LONGEST_LOOK_SECONDS: Final = 0.64
_STALE_LOOKS: Final = 4
_STAT: Final = Path("/proc/stat")
_CACHES: Final = "/sys/devices/system/cpu/cpu{}/cache"
_NAME: Final = "cpu"
_IDLE_FIELD: Final = 4
_AUTOGROUPS: Final = Path("/proc/sys/kernel/sched_autogroup_enabled")


class Processors:
    """The processors of this host. Everything may raise `OSError`."""

    def __init__(self) -> None:
        # With the GIL: to let go of it takes longer than the call.
        self._getcpu: Callable[[], int] | None = getattr(ctypes.PyDLL(None), "sched_getcpu", None)

    def current(self) -> int:
        """On which processor this thread runs."""
        if self._getcpu is None:
            raise OSError("this C library does not tell where a thread runs")
        return self._getcpu()

    def allowed(self) -> Collection[int]:
        """On which it may run."""
        return sorted(os.sched_getaffinity(0))

    def near(self, processor: int) -> Collection[int]:
        """Those that share their last cache with it, itself among them, as far as is known."""
        # The levels are numbered from the processor on; not every host tells of them.
        shared = sorted(Path(_CACHES.format(processor)).glob("index*/shared_cpu_list"))
        return _parsed(shared[-1].read_text()) if shared else {processor}

    def idle_seconds(self) -> dict[int, float]:
        """How long each processor has been idle since the host began."""
        ticks = os.sysconf("SC_CLK_TCK")
        rows = [line.split() for line in _STAT.read_text().splitlines() if line.startswith(_NAME)]
        return {
            int(row[0].removeprefix(_NAME)): int(row[_IDLE_FIELD]) / ticks
            for row in rows
            if row[0] != _NAME  # that is all of them together
        }

    def move_to(self, processor: int) -> None:
        """Has this thread go on there, for now."""
        allowed = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, (processor,))
        finally:
            os.sched_setaffinity(0, allowed)


class IdleWatch:
    """Finds a processor that has been idle of late, half of the time between two looks.

    To share one with something else that is busy would be worse than to stay. Where none was idle
    one looks again later and later.
    """

    def __init__(self, processors: Processors) -> None:
        self._processors = processors
        self._seconds = _SHORTEST_LOOK_SECONDS
        self._not_before = 0.0
        self._seen: tuple[dict[int, float], float] | None = None
        """How long each one had been idle by then, and when that was."""

    def is_due(self, now: float) -> bool:
        """Whether it is time to look again; else `find` finds nothing."""
        return now >= self._not_before

    def find(self, candidates: Collection[int], now: float) -> int | None:
        """The idlest of the candidates, if that was idle enough; None where it was not, or is not
        known yet. Costs nothing but now and then."""
        if not self.is_due(now):
            return None
        idle = self._processors.idle_seconds()
        seen, self._seen = self._seen, (idle, now)
        if seen is None or now - seen[1] > _STALE_LOOKS * self._seconds:
            self._seconds = _SHORTEST_LOOK_SECONDS
        else:
            before, since = seen
            gains = {each: idle.get(each, 0.0) - before.get(each, 0.0) for each in candidates}
            best = max(gains, key=gains.__getitem__, default=None)
            if best is not None and gains[best] >= (now - since) / 2:
                self.forget()
                self._not_before = now + _SHORTEST_LOOK_SECONDS
                return best
            self._seconds = min(2 * self._seconds, _LONGEST_LOOK_SECONDS)
        self._not_before = now + self._seconds
        return None

    def forget(self) -> None:
        """What was seen so far is not what is looked for any more."""
        self._seen = None
        self._seconds = _SHORTEST_LOOK_SECONDS


def yielding_group() -> int:
    """Returns a number that this process has in common with those to which it can yield. Where the
    kernel makes a group of each session (torchrun and our launcher begin every rank in a session of
    its own) it deals a processor out to groups: a yield is then no turn for another group that has
    had more than its share of late, and that takes milliseconds to settle."""
    try:
        are_groups = _AUTOGROUPS.read_text().strip() != "0"
    except OSError:  # such a kernel makes none
        are_groups = False
    return os.getsid(0) if are_groups else 0


def _parsed(text: str) -> set[int]:
    """The numbers of a list as the kernel writes it: `0-3,8`."""
    found = set[int]()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
