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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives import Step
from lockstitch.hvd.job import PROCESS, current_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstitch.collectives import Progress, Session

_BEGIN, _END = b"[\n", b"\n]\n"
_START = "start_time_since_epoch_in_micros"
_DYNAMIC = "DYNAMIC"


class Timeline:
    """An observer of a session's progress. `continues`: what the file has already stays, also what
    another process of this job has written. `marks_cycles`: see `start_timeline`."""

    def __init__(self, path: str, *, continues: bool = False, marks_cycles: bool = False) -> None:
        self._marks_cycles = marks_cycles
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._open: set[str] = set()
        """The operations of which a phase has begun and not ended."""
        self._began_at = SYSTEM_CLOCK.now()
        before = _events_of(path) if continues else []
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._file, 0)
        self._place = os.write(self._file, _BEGIN)
        self._is_first = True
        now = time.time_ns() // 1000
        self._write(before or [{"name": _START, "ph": "M", "pid": 0, "args": {_START: now}}])
        if before:
            self._began_at -= (now - before[0]["args"][_START]) / 1e6
            self._take_over(before)

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if self._file is not None:
                self._write(self._events(progress))

    def close(self) -> None:
        """Ends it; harmless when repeated."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _take_over(self, events: list[dict[str, Any]]) -> None:
        """The rows of before, whose phases have ended with whoever wrote them."""
        unfinished: dict[int, float] = {}
        for event in events:
            if event.get("name") == "process_name":
                self._rows[event["args"]["name"]] = event["pid"]
            if event["ph"] == "B":
                unfinished[event["pid"]] = event["ts"]
            elif event["ph"] == "E":
                unfinished.pop(event["pid"], None)
        ends = [{"ph": "E", "ts": at, "pid": row} for row, at in unfinished.items()]
        if ends:
            self._write(ends)

    def _events(self, progress: Progress) -> list[dict[str, Any]]:
        name = progress.name
        if progress.process_set:
            name += f" (set {progress.process_set})"
        events: list[dict[str, Any]] = []
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._rows) + 1
            events.append({"name": "process_name", "ph": "M", "pid": row, "args": {"name": name}})
        at = round((progress.at - self._began_at) * 1e6, 3)
        phase = progress.kind.value.upper()
        if progress.step is not Step.SUBMITTED and name in self._open:
            self._open.remove(name)
            events.append({"ph": "E", "ts": at, "pid": row})
        if progress.step is Step.READY and self._marks_cycles:
            events.append({"name": "CYCLE_START", "ph": "i", "s": "g", "ts": at, "pid": 0})
        if progress.step in (Step.SUBMITTED, Step.READY):
            begun = phase if progress.step is Step.READY else f"NEGOTIATE_{phase}"
            events.append({"name": begun, "ph": "B", "ts": at, "pid": row})
            self._open.add(name)
        return events

    def _write(self, events: list[dict[str, Any]]) -> None:
        assert self._file is not None
        lines = b",\n".join(json.dumps(event).encode() for event in events)
        content = (b"" if self._is_first else b",\n") + lines
        os.pwrite(self._file, content + _END, self._place)  # at once: half of it would be no JSON
        self._place += len(content)
        self._is_first = False


def _events_of(path: str) -> list[dict[str, Any]]:
    """Returns what a timeline's file has; nothing where it is no timeline."""
    try:
        events = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return []
    is_timeline = isinstance(events, list) and events and events[0].get("name") == _START
    return events if is_timeline else []


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to write a timeline of this job's operations to a file, which rank 0 does; with
    `{rank}` in its name every rank writes one. A timeline under way is ended before.

    `mark_cycles`: marks, as CYCLE_START, each moment at which all ranks had submitted an operation
    and it was begun. Raises `ValueError` before `init`, `OSError` where the file cannot be written.
    `HOROVOD_TIMELINE` and `HOROVOD_TIMELINE_MARK_CYCLES` do the same at `init`.
    """
    session = current_session()
    end_timeline(session)
    begin_timeline(session, file_path, marks_cycles=mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline; harmless where there is none."""
    end_timeline(current_session())


def begin_timeline(
    session: Session, path: str, *, continues: bool = False, marks_cycles: bool = False
) -> None:
    """Attaches a timeline to a session, where its rank is to write one. See `Timeline`."""
    of_rank = path.replace("{rank}", str(session.rank))
    if of_rank == path and session.rank != 0:
        return
    session.observers.progress = Timeline(of_rank, continues=continues, marks_cycles=marks_cycles)


def begin_timeline_of(
    session: Session, environment: Mapping[str, str], *, is_first_world: bool
) -> None:
    """Does so if the environment says it. Later worlds of a job go on with the file of the first,
    whoever is rank 0 then."""
    path = environment.get("HOROVOD_TIMELINE")
    if path and path != _DYNAMIC:
        marks_cycles = environment.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0")
        continues = path in PROCESS.timelines or not is_first_world
        PROCESS.timelines.add(path)
        begin_timeline(session, path, continues=continues, marks_cycles=marks_cycles)


def end_timeline(session: Session) -> None:
    """Detaches a session's timeline, if it has one."""
    timeline = session.observers.progress
    if isinstance(timeline, Timeline):
        session.observers.progress = None
        timeline.close()
