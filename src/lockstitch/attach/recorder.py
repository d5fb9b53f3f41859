"""Whether this process counts its calls and records spans now, because somebody looks.

Off, which it is until somebody asks, it costs each call a look at `RECORDER.is_on`. A question for
counters has calls counted for some minutes more, so that who asks again finds what came in between;
a question that records has spans kept for as long as it says.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from lockstitch.attach.ranges import RANGES
from lockstitch.attach.spans import MOST_SPANS, SpanRing
from lockstitch.attach.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.attach.traffic import Series
    from lockstitch.attach.values import Recording

COUNTED_SECONDS: Final = 150.0
"""So long calls are counted after a question: longer than Prometheus waits between two."""


class Recorder:
    """See the module. A process has one, `RECORDER`."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether calls are counted or spans kept. Who is to note something looks here first."""
        self.spans: SpanRing | None = None
        """Where spans go; None while nobody records."""
        self.traffic = Traffic()
        self._counts_until: float | None = None
        self._recordings = 0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def __repr__(self) -> str:
        state = "records" if self.spans is not None else "counts" if self.is_on else "off"
        return f"<Recorder · {state}>"

    def count(self) -> None:
        """Has calls counted from now on, until nobody has asked for a while."""
        with self._lock:
            self._counts_until = time.monotonic() + COUNTED_SECONDS
            self.is_on = True

    @contextlib.contextmanager
    def recording(self, most: int = MOST_SPANS) -> Iterator[Callable[[], Recording]]:
        """Within, spans are kept; what it yields returns those that came so far. `most`: so many
        are kept; where another recording is under way already, as many as that one keeps."""
        with self._lock:
            if self.spans is None:
                self.spans = SpanRing(max(1, most))
            ring = self.spans
            self._recordings += 1
            self.is_on = True
            RANGES.begin(self)
        mark, began_at = ring.mark(), time.monotonic()
        try:
            yield lambda: ring.since(mark, began_at)
        finally:
            with self._lock:
                self._recordings -= 1
                if not self._recordings:
                    RANGES.end()
                    self.spans = None
                    self.is_on = self._counts_until is not None

    def record(self, seconds: float, most: int = MOST_SPANS) -> Recording:
        """Records for so long, and returns what came."""
        with self.recording(most) as recorded:
            threading.Event().wait(seconds)
            return recorded()

    def begin(self) -> float:
        """Returns when a span begins, for `end`; 0 while nobody records."""
        return 0.0 if self.spans is None else time.monotonic()

    def end(  # noqa: PLR0913, PLR0917 - flat, as a span is
        self,
        begun: float,
        kind: str,
        name: str,
        worker: str = "",
        peer: str = "",
        number: int = 0,
        sent: int = 0,
        received: int = 0,
    ) -> None:
        """Notes a span of this thread that has lasted since `begun`."""
        spans = self.spans
        if begun and spans is not None:
            now = time.monotonic()
            spans.add(kind, name, worker, begun, now, peer, number, 0.0, sent, received)

    def note_call(
        self, series: Series, now: float, seconds: float, sent: int, received: int, *, failed: bool
    ) -> None:
        """Counts a call that has ended now, a time of the monotonic clock, if calls are counted."""
        until = self._counts_until
        if until is not None:
            series.add(seconds, sent, received, failed)
            if now > until:
                self.stop_counting()

    def stop_counting(self) -> None:
        """Has calls counted no more; not where somebody begins or ends to look right now."""
        # Not by waiting: this may be a thread that reads, or a signal's handler.
        if self._lock.acquire(blocking=False):
            try:
                self._counts_until = None
                self.is_on = self.spans is not None
            finally:
                self._lock.release()

    def _forget(self) -> None:
        """A forked child counts and records for itself, when it is asked."""
        self._lock = threading.Lock()
        self.is_on, self.spans, self._counts_until = False, None, None
        self._recordings = 0
        self.traffic = Traffic()
        RANGES.end()


RECORDER: Final = Recorder()
