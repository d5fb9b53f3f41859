"""When each operation waited for other ranks, and when it was worked on: a file for a trace viewer
(Perfetto, chrome://tracing).

Each operation is a row of its own; on it NEGOTIATE_ALLREDUCE lasts from its submission until all
ranks have submitted it, ALLREDUCE from then to its end. The file is a whole JSON document at every
moment, also after a kill: each write replaces the bracket that closes the list, and puts another.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives import Step
from lockstitch.hvd.job import PROCESS, current_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.collectives import Progress, Session

__all__ = ["start_timeline", "stop_timeline"]

_BEGIN, _END = b"[\n", b"\n]\n"
_DYNAMIC = "DYNAMIC"


class Timeline:
    """An observer of a session's progress, and of those after it if it is opened again."""

    def __init__(self, path: str) -> None:
        self._path = path
        mode = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC
        self._file: int | None = os.open(path, mode, 0o666)
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, str], int] = {}
        self._open: dict[tuple[int, str], int] = {}
        """How many phases of an operation have begun and not ended."""
        self._began_at = SYSTEM_CLOCK.now()
        self._place = os.write(self._file, _BEGIN)
        self._is_first = True
        name = "start_time_since_epoch_in_micros"
        self._write([{"name": name, "ph": "M", "pid": 0, "args": {name: time.time_ns() // 1000}}])

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if self._file is not None:
                self._write(self._events(progress))

    def reopen(self) -> None:
        """Goes on after `close`."""
        with self._lock:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
                self._open.clear()

    def close(self) -> None:
        """Ends it; harmless when repeated."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _events(self, progress: Progress) -> list[dict[str, Any]]:
        key = (progress.process_set, progress.name)
        events: list[dict[str, Any]] = []
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._rows) + 1
            named = progress.name if not progress.process_set else f"{progress.name} (set {key[0]})"
            events.append({"name": "process_name", "ph": "M", "pid": row, "args": {"name": named}})
        at = round((progress.at - self._began_at) * 1e6, 3)
        phase = progress.kind.value.upper()
        if progress.step is not Step.SUBMITTED and self._open.pop(key, 0):
            events.append({"ph": "E", "ts": at, "pid": row})
        if progress.step in (Step.SUBMITTED, Step.READY):
            name = phase if progress.step is Step.READY else f"NEGOTIATE_{phase}"
            events.append({"name": name, "ph": "B", "ts": at, "pid": row})
            self._open[key] = 1
        return events

    def _write(self, events: list[dict[str, Any]]) -> None:
        assert self._file is not None
        lines = b",\n".join(json.dumps(event).encode() for event in events)
        content = (b"" if self._is_first else b",\n") + lines
        os.pwrite(self._file, content + _END, self._place)  # at once: half of it would be no JSON
        self._place += len(content)
        self._is_first = False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:  # noqa: ARG001 - no cycles
    """Begins to write a timeline of this job's operations to a file, which rank 0 does; with
    `{rank}` in its name every rank writes one. A timeline under way is ended before.

    `mark_cycles` says nothing here: there are no cycles. Raises `ValueError` before `init`,
    `OSError` where the file cannot be written. `HOROVOD_TIMELINE` does the same at `init`.
    """
    session = current_session()
    end_timeline(session)
    begin_timeline(session, file_path)


def stop_timeline() -> None:
    """Ends the timeline; harmless where there is none."""
    end_timeline(current_session())


def begin_timeline(session: Session, path: str, *, continues: bool = False) -> None:
    """Attaches a timeline to a session, where its rank is to write one. `continues`: what this
    process has written to the same file in an earlier session stays."""
    of_rank = path.replace("{rank}", str(session.rank))
    if of_rank == path and session.rank != 0:
        return
    timeline = PROCESS.timelines.get(of_rank) if continues else None
    if timeline is None:
        timeline = PROCESS.timelines[of_rank] = Timeline(of_rank)
    timeline.reopen()
    session.observers.progress = timeline


def begin_timeline_of(session: Session, environment: Mapping[str, str]) -> None:
    """Does so if the environment says it."""
    path = environment.get("HOROVOD_TIMELINE")
    if path and path != _DYNAMIC:
        begin_timeline(session, path, continues=True)


def end_timeline(session: Session) -> None:
    """Detaches a session's timeline, if it has one."""
    timeline = session.observers.progress
    if isinstance(timeline, Timeline):
        session.observers.progress = None
        timeline.close()
