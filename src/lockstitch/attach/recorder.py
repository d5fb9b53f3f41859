"""Whether this process counts its calls and records spans now, because somebody looks.

Off, which it is until somebody asks, it costs each call a look at `RECORDER.is_on`. A question for
counters has calls counted for some minutes more, so that who asks again finds what came in between;
a question that records has spans kept for as long as it says.

On, all that a call does is to note how long it took (`attach.traffic`), and, while somebody
records, to leave a row (`attach.spans`) in a tray. Both are taken in some at a time: by a thread
whose call is over, or by who asks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Final

from lockstitch.attach.ranges import RANGES
from lockstitch.attach.spans import MOST_SPANS, SpanRing, recording_of
from lockstitch.attach.traffic import Traffic
from lockstitch.interrupts import if_free

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.attach.spans import Label, Row
    from lockstitch.attach.traffic import Series
    from lockstitch.attach.values import CallTraffic, Recording

    Noted = tuple[Label, Series]
    """What calls of one function and one peer are noted with: the label of their spans, and where
    those are put that are to be counted."""

COUNTED_SECONDS: Final = 150.0
"""So long calls are counted after a question: longer than Prometheus waits between two."""
SETTLED_AT: Final = 256
"""So many are taken in at a time: in less time than who waits meanwhile stays awake."""
_MOST_WAITING: Final = 100_000
"""So many may wait while whoever takes them in is held up."""


class Recorder:
    """See the module. A process has one, `RECORDER`."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether calls are counted or spans kept. Who is to note something looks here first."""
        self.counts = False
        """Whether calls are counted."""
        self.spans: SpanRing | None = None
        """Where spans go; None while nobody records."""
        self.rows: list[Row] = []
        """Spans that have been noted and are to be taken in. Who adds to it, or to the calls of a
        function, calls `settle` where there are `SETTLED_AT`; the methods here do both."""
        self._traffic = Traffic()
        self._counts_until = 0.0
        self._recordings = 0
        self._lost = 0
        self._lock = threading.Lock()
        self._dropping = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def __repr__(self) -> str:
        state = "records" if self.spans is not None else "counts" if self.is_on else "off"
        return f"<Recorder · {state}>"

    def count(self) -> None:
        """Has calls counted from now on, until nobody has asked for a while."""
        with self._lock:
            self._take_in()
            self._counts_until = time.monotonic() + COUNTED_SECONDS
            self.is_on = self.counts = True

    def counted(self, worker: str) -> tuple[CallTraffic, ...]:
        """Returns what has been counted of a worker of this process."""
        with self._lock:
            self._take_in()
            return self._traffic.of(worker)

    @contextlib.contextmanager
    def recording(self, most: int = MOST_SPANS) -> Iterator[Callable[[], Recording]]:
        """Within, spans are kept; what it yields returns those that came so far. `most`: so many
        are kept; where another recording is under way already, as many as that one keeps."""
        with self._lock:
            self._take_in()
            if self.spans is None:
                self.spans = SpanRing(max(1, most), self.note)
            ring = self.spans
            mark, lost, began_at = ring.taken, self._lost, time.monotonic()
            self._recordings += 1
            self.is_on = True
            RANGES.begin(self)

        def recorded() -> Recording:
            with self._lock:
                self._take_in()
                rows, dropped = ring.since(mark)
                dropped += self._lost - lost
            return recording_of(rows, dropped, began_at)

        try:
            yield recorded
        finally:
            with self._lock:
                self._take_in()
                self._recordings -= 1
                if not self._recordings:
                    RANGES.end()
                    self.spans = None
                    self.is_on = self.counts

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

    def noted(self, kind: str, name: str, worker: str, peer: str) -> Noted:
        """Returns what calls are noted with whose spans are of that kind."""
        label = (kind, name, worker, peer)
        return label, self._traffic.series(label)

    def note_call(  # noqa: PLR0913, PLR0917 - as above
        self,
        noted: Noted,
        begun: float,
        end: float,
        number: int,
        at: float,
        sent: int,
        received: int,
        has_failed: bool,
    ) -> None:
        """A call has ended, which took this thread from `begun` to `end`, or from `at` on as a
        whole: has it counted, if calls are, and its span kept, if spans are."""
        if self.counts:
            self.count_call(noted, end - (at or begun), sent, received, has_failed)
        if self.spans is not None:
            rows = self.rows
            rows.append((noted[0], get_ident(), begun, end, number, at, sent, received, has_failed))
            if len(rows) >= SETTLED_AT:
                self.settle()

    def count_call(
        self, noted: Noted, seconds: float, sent: int, received: int, has_failed: bool
    ) -> None:
        """Has a call counted that has ended."""
        series = noted[1]
        series.note(seconds, sent, received, has_failed=has_failed)
        if len(series.calls) >= SETTLED_AT:
            self.settle(series)

    def note(self, row: Row) -> None:
        """Has a span kept, if spans are."""
        rows = self.rows
        rows.append(row)
        if len(rows) >= SETTLED_AT:
            self.settle()

    def settle(self, series: Series | None = None) -> None:
        """Takes in what has been noted; not while another thread does. `series`: the one in which
        there is enough."""
        if_free(self._lock, self._take_in)
        # Whoever takes in may be held up, by a signal's handler, say.
        if series is not None and len(series.calls) > _MOST_WAITING:
            del series.calls[_MOST_WAITING:]  # nobody is taking these in
        if len(self.rows) > _MOST_WAITING:
            if_free(self._dropping, self._drop)

    def _take_in(self) -> None:
        """Counts and keeps what has been noted. The caller has the lock."""
        ring = self.spans
        rows = self.rows[:_MOST_WAITING]
        del self.rows[: len(rows)]
        if ring is not None:
            ring.take(rows)
        if self.counts:
            self._traffic.count_noted()
            if time.monotonic() > self._counts_until:
                self.counts, self.is_on = False, ring is not None

    def _drop(self) -> None:
        """Drops the rows that came last, which nobody is taking in. The caller has the lock for
        that."""
        count = len(self.rows)
        del self.rows[_MOST_WAITING:]
        self._lost += count - len(self.rows)

    def stop_counting(self) -> None:
        """Has calls counted no more."""
        with self._lock:
            self._take_in()
            self.counts, self.is_on = False, self.spans is not None

    def _forget(self) -> None:
        """A forked child counts and records for itself, when it is asked."""
        self._lock, self._dropping = threading.Lock(), threading.Lock()
        self.is_on, self.counts, self.spans = False, False, None
        self._recordings = 0
        self.rows, self._traffic = [], Traffic()
        RANGES.end()


RECORDER: Final = Recorder()
