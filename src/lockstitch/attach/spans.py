"""What a process records while somebody traces it: spans of time, in a ring of bounded size.

A *span* is a call on the caller's side or on the callee's, a run of a component in a backward pass,
a collective, a range of the program's own. Each is noted once, when it is over, as one tuple, a
*row*; where more come than the ring holds, the oldest are dropped and counted. What has not ended
when the recording does is not told.

Spans of two workers that belong together have a key in common: the call's number, the stitch, the
message between two stages. Arrows are made of keys afterwards (`lockstitch.observe.flows`).
"""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Final, NamedTuple

from lockstitch.attach.values import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MOST_SPANS: Final = 100_000
"""So many spans of a process are kept by default; each takes about 250 bytes."""


class Span(NamedTuple):
    """One span. Times are in nanoseconds of the process's monotonic clock.

    `kind`: see `KINDS`; `thread`: the one that noted it, by its number in Python; `peer` and
    `number`: its key; `at`: a time within, 0 without one; `sent` and `received`: bytes of values.
    """

    kind: str
    name: str
    worker: str
    thread: int
    start: int
    end: int
    peer: str
    number: int
    at: int
    sent: int
    received: int
    has_failed: bool


KINDS: Final = {
    "call": "a call that a thread waits for, from the call to its result; its key: callee, number",
    "send": "the sending of a call that no thread waits for",
    "answer": "the taking in of its answer, or error; `at`: when the call was made",
    "serve": "a request, while it holds a thread; its key: caller, number; `at`: when it was "
    "answered",
    "conclude": "the end of a request that had let go of its thread; like `serve`",
    "stitch": "the recording of tensors that leave for another worker; its key: the stitch",
    "gradient sent": "the sending of gradients; its key: the stitch",
    "gradient received": "the arrival of gradients; its key: the stitch",
    "backward": "the run of a component of a backward pass",
    "collective": "a collective, from its submission to its end; `at`: when all ranks were ready",
    "handover": "the sending of a value to the next stage of a pipeline",
    "stage": "an action of a stage; its key: the value that it waited for",
    "request": "the sending of a part of a batch to a slot",
    "slot": "a pass of a slot; its key: the request",
    "range": "a range of the program's own (`torch.profiler.record_function`)",
}
"""The kinds of spans, and what each is."""

Label = tuple[str, str, str, str]
"""What spans have in common: their kind, name, worker and peer."""
Row = tuple[Label, int, float, float, int, float, int, int, bool]
"""A span as it is noted: its label, then `thread`, `start`, `end`, `number`, `at`, `sent`,
`received` and `has_failed`, with times in seconds."""
_WIDTH: Final = 12
_NANO: Final = 1e9


class SpanRing:
    """The latest spans of a process, `most` at most. `note`: where `add` takes rows to, for which
    `take` is called sooner or later, by one thread at a time; None: to `take` itself."""

    def __init__(self, most: int = MOST_SPANS, note: Callable[[Row], None] | None = None) -> None:
        self._rows: deque[Row] = deque(maxlen=most)
        self._note = self._take_one if note is None else note
        self.taken = 0
        """How many there were so far: the mark for `since` of those that follow."""

    def __repr__(self) -> str:
        return f"<SpanRing · {self._rows.maxlen} spans at most>"

    def add(  # noqa: PLR0913, PLR0917 - flat, as a span is
        self,
        kind: str,
        name: str,
        worker: str,
        start: float,
        end: float,
        peer: str = "",
        number: int = 0,
        at: float = 0.0,
        sent: int = 0,
        received: int = 0,
        has_failed: bool = False,
    ) -> None:
        """Adds a span of the calling thread. Times are in seconds of the monotonic clock."""
        self._note(
            (
                (kind, name, worker, peer), get_ident(), start, end, number, at, sent, received,
                has_failed,
            )
        )  # fmt: skip

    def take(self, rows: Sequence[Row]) -> None:
        """Takes some in; where there are too many, the oldest go."""
        self._rows.extend(rows)
        self.taken += len(rows)

    def _take_one(self, row: Row) -> None:
        self.take((row,))

    def since(self, mark: int) -> tuple[list[Row], int]:
        """Returns the spans taken in since a mark that are still there, the oldest first, and how
        many are not."""
        count = self.taken - mark
        kept = min(count, len(self._rows))
        return [*islice(self._rows, len(self._rows) - kept, None)], count - kept


def recording_of(rows: Iterable[Row], dropped: int, began_at: float) -> Recording:
    """Returns spans as a recording that began then (seconds of the monotonic clock)."""
    texts: dict[str, int] = {}
    numbers: list[int] = []
    for row in rows:
        (kind, name, worker, peer), thread, start, end, number, at, sent, received, failed = row
        numbers += (
            texts.setdefault(kind, len(texts)),
            texts.setdefault(name, len(texts)),
            texts.setdefault(worker, len(texts)),
            thread,
            round(start * _NANO),
            round(end * _NANO),
            texts.setdefault(peer, len(texts)),
            number,
            round(at * _NANO),
            sent,
            received,
            int(failed),
        )
    now = time.monotonic_ns()
    return Recording(
        began_at=round(began_at * _NANO),
        ended_at=now,
        epoch=time.time_ns() - now,
        dropped=dropped,
        texts=tuple(texts),
        numbers=tuple(numbers),
    )


def spans_of(recording: Recording) -> Iterator[Span]:
    """Yields the spans of a recording. Raises `ValueError` for one that is none."""
    texts, numbers = recording.texts, recording.numbers
    if len(numbers) % _WIDTH:
        raise ValueError(f"a span has {_WIDTH} numbers, and there are {len(numbers)}")
    for row in _rows(numbers):
        kind, name, worker, thread, start, end, peer, number, at, sent, received, failed = row
        if not all(0 <= each < len(texts) for each in (kind, name, worker, peer)):
            raise ValueError(f"a span refers to a text that is not there: {row}")
        yield Span(
            texts[kind], texts[name], texts[worker], thread, start, end, texts[peer], number, at,
            sent, received, bool(failed),
        )  # fmt: skip


def _rows(numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    columns = [numbers[place::_WIDTH] for place in range(_WIDTH)]
    return zip(*columns, strict=True)
