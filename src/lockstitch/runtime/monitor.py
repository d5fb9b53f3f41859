"""The thread of a pool that looks now and then whether one of the others needs help.

To be woken by a timer costs far more than the look. Where a caller and a callee keep all CPUs busy,
one of the two must give way, and afterwards they may find themselves on one CPU for a while. So the
monitor looks every millisecond only as long as that is of use; where it finds nothing to do, time
after time, it looks half as often, down to every 16 ms. Where nothing happens at all, it rests.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SHORTEST_SECONDS = 0.001
_LONGEST_SECONDS = 0.016
_CALM_LOOKS = 8
"""So many in a row, and it looks half as often."""
_REST_SECONDS = 0.02


class Sight(enum.Enum):
    """What the monitor has found at a look."""

    QUIET = enum.auto()
    """Nothing has happened since the last look."""
    ACTIVE = enum.auto()
    RUNNING = enum.auto()
    """Something has begun that it must look at once more, soon."""
    NEEDED = enum.auto()
    """It had something to do."""


class Pace:
    """When the next look is due; `hasten` may be called by any thread."""

    def __init__(self) -> None:
        self._usual_seconds = _SHORTEST_SECONDS
        self._is_running = False
        self._calm_looks = 0

    @property
    def seconds(self) -> float:
        """How long it is from the last look to the next."""
        return _SHORTEST_SECONDS if self._is_running else self._usual_seconds

    def note(self, sight: Sight) -> None:
        """Notes what a look has found."""
        self._is_running = sight is Sight.RUNNING
        if sight is Sight.NEEDED:
            self._calm_looks = 0
            self._usual_seconds = max(self._usual_seconds / 2, _SHORTEST_SECONDS)
            return
        self._calm_looks += 1
        if self._calm_looks >= _CALM_LOOKS:
            self._calm_looks = 0
            self._usual_seconds = min(2 * self._usual_seconds, _LONGEST_SECONDS)

    def hasten(self) -> None:
        """Something could not have waited, and more of its kind may come."""
        self._calm_looks = 0
        self._usual_seconds = _SHORTEST_SECONDS


class Checks:
    """Functions that are called at each look, each until it returns True."""

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self._report = report
        self._checks: deque[Callable[[], bool]] = deque()

    def add(self, check: Callable[[], bool]) -> None:
        """From now on `check` is called; any thread may add one."""
        self._checks.append(check)

    def run(self) -> bool:
        """Calls each once; whether there were any."""
        count = len(self._checks)
        for _ in range(count):
            check = self._checks.popleft()
            try:
                if not check():
                    self._checks.append(check)
            except Exception as error:  # noqa: BLE001 - one broken check must not end the monitor
                self._report(error)
        return count > 0


class Monitor:
    """Calls `look` now and then once it was roused, until that has been quiet for a while."""

    def __init__(self, name: str, look: Callable[[], Sight]) -> None:
        self._name = name
        self._look = look
        self._pace = Pace()
        self._starting = threading.Lock()
        self._wake = threading.Event()
        # Released when the thread is to stop. (A lock is awaited in half of an event's time.)
        self._stop = threading.Lock()
        self._stop.acquire()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.rests = True
        """Whether it must be roused before it looks at anything."""

    def __repr__(self) -> str:
        state = "resting" if self.rests else f"every {self._pace.seconds * 1e3:g} ms"
        return f"<Monitor {self._name!r} · {state}>"

    def rouse(self) -> None:
        """From now on it looks, if it rests."""
        self.rests = False
        with self._starting:
            if self._thread is None and not self._closed:
                self._start()
        self._wake.set()

    def _start(self) -> None:
        thread = self._thread = threading.Thread(target=self._watch, name=self._name, daemon=True)
        try:
            thread.start()
        except BaseException as error:
            if thread.ident is None:
                self._thread = None
                self.rests = True
            if not isinstance(error, RuntimeError):
                raise  # else the system has no more threads: who rouses it next tries again

    def hasten(self) -> None:
        """What it was asked to look after could not have waited: it looks more often again."""
        self._pace.hasten()

    @property
    def thread(self) -> threading.Thread | None:
        """None until it is roused for the first time."""
        with self._starting:
            return self._thread

    def close(self) -> None:
        """Ends the thread, or has none start; harmless when repeated."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
        self._stop.release()
        self._wake.set()

    def _watch(self) -> None:
        quiet_seconds = 0.0
        while not self._closed:
            seconds = self._pace.seconds
            self._stop.acquire(timeout=seconds)
            sight = self._look()
            self._pace.note(sight)
            if sight is not Sight.QUIET:
                quiet_seconds = 0.0
                continue
            quiet_seconds += seconds
            if quiet_seconds >= _REST_SECONDS:
                self._wake.clear()
                self.rests = True
                if self._look() is Sight.QUIET and not self._closed:
                    self._wake.wait()
                self.rests = False
                quiet_seconds = 0.0
