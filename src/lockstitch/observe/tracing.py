"""A trace of a job: what all of its workers did for some seconds, on one axis of time."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from lockstitch.attach.spans import MOST_SPANS
from lockstitch.attach.values import Question
from lockstitch.observe import looking
from lockstitch.observe.chrome_trace import events_of
from lockstitch.observe.clocks import HostClock, align
from lockstitch.observe.flows import Flow, find_flows
from lockstitch.observe.participants import participants_of
from lockstitch.observe.tracks import Track, track_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from lockstitch.observe.grouping import Job

_MOST_TOGETHER: Final = 500_000
"""So many spans are kept by all processes of a job together by default: 200 MB of a file, and what
their reader can show. Who makes the file takes six times as much memory."""
_LEAST_SPANS: Final = 1000
_LOOK_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 20.0
"""So long a process may take to tell what it has recorded."""


class Looks(Protocol):
    """What a job can be looked at through (`looking.Watch`)."""

    def look(self, question: Question) -> Job:
        """Asks its processes. Raises `JobNotFoundError` where it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Trace:
    """What a job did for some seconds. `flows`: which spans belong together; `cut`: how many ends
    of others have no other end in the trace. `silent`: the workers that told nothing, and why."""

    job: str
    seconds: float
    tracks: tuple[Track, ...]
    flows: tuple[Flow, ...]
    cut: int
    clocks: tuple[HostClock, ...]
    silent: tuple[str, ...]

    @property
    def dropped(self) -> int:
        """How many spans are missing because more came than a process keeps."""
        return sum(each.dropped for each in self.tracks)

    def metadata(self) -> dict[str, Any]:
        """Returns what the file says of itself."""
        return {
            "job": self.job,
            "seconds": self.seconds,
            "workers": [
                {
                    "name": each.name,
                    "rank": each.rank,
                    "pid": each.pid,
                    "host": each.host,
                    "spans": len(each.spans),
                    "dropped_spans": each.dropped,
                }
                for each in self.tracks
            ],
            "silent_workers": list(self.silent),
            "flows": len(self.flows),
            "cut_flow_ends": self.cut,
            "clocks": [
                {
                    "host": each.host,
                    "offset_us": each.offset_nanoseconds / 1e3,
                    "error_us": None
                    if each.error_nanoseconds is None
                    else each.error_nanoseconds / 1e3,
                }
                for each in self.clocks
            ],
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the trace as events of the Chrome trace format, those with a time in its order."""
        yield from events_of(self.tracks, self.flows, self.clocks)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for Perfetto (ui.perfetto.dev) or chrome://tracing. Raises `OSError`."""
        with Path(path).open("w", encoding="utf-8") as file:
            file.writelines(self.text())

    def text(self) -> Iterator[str]:
        """Yields what `save` writes, in parts."""
        encode = json.JSONEncoder(separators=(",", ":")).encode
        yield f'{{"displayTimeUnit":"ms","otherData":{encode(self.metadata())},"traceEvents":['
        separator = "\n"
        for event in self.events():
            yield separator + encode(event)
            separator = ",\n"
        yield "\n]}\n"


def trace(
    job: str | int | None = None,
    *,
    seconds: float = 10.0,
    path: str | os.PathLike[str] | None = None,
    most_spans: int | None = None,
) -> Trace:
    """Records what all workers of a job do for `seconds` (10), and returns it.

    `job`: as in `status`. `path`: a file for Perfetto or chrome://tracing that is written, too.
    `most_spans`: so many spans each process keeps, the latest; None: 100,000, and fewer where that
    would be more than 500,000 together. Raises `JobNotFoundError`, `ValueError` for seconds or a
    number that is not positive, and `OSError` where the file cannot be written.
    """
    question = trace_question(seconds, MOST_SPANS if most_spans is None else most_spans)
    if path is not None and not Path(path).absolute().parent.is_dir():  # rather than afterwards
        raise FileNotFoundError(f"there is no folder {Path(path).absolute().parent}")
    watch = looking.watch(job)
    if most_spans is None:
        question = bounded(question, watch)
    recorded = trace_of(watch.look(question), seconds)
    if path is not None:
        recorded.save(path)
    return recorded


def bounded(question: Question, watch: Looks) -> Question:
    """Returns the question with the share of each process of a job in what its trace may hold.
    Raises `JobNotFoundError`."""
    count = len(watch.look(Question(seconds=_LOOK_SECONDS)).processes)
    return replace(question, most_spans=share_of(count))


def share_of(processes: int) -> int:
    """Returns how many spans each of so many processes keeps by default."""
    return max(_LEAST_SPANS, min(MOST_SPANS, _MOST_TOGETHER // max(1, processes)))


def trace_question(seconds: float, most_spans: int = MOST_SPANS) -> Question:
    """Returns what the processes of a job are asked for a trace. Raises `ValueError` as `trace`
    does."""
    if not 0 < seconds < float("inf") or most_spans < 1:
        raise ValueError(f"a trace of {seconds} s, or of {most_spans} spans, cannot be recorded")
    return Question(
        threads=True,
        seconds=seconds + _ANSWER_SECONDS,
        record_seconds=seconds,
        most_spans=most_spans,
    )


def trace_of(job: Job, seconds: float) -> Trace:
    """Returns the trace of a job whose processes have been asked to record."""
    participants = participants_of(job)
    tracks = [
        track_of(report, participants) for report in job.processes if report.recording is not None
    ]
    epochs = {report.host: report.recording.epoch for report in job.processes if report.recording}
    found = find_flows([each.spans for each in tracks], [epochs[each.host] for each in tracks])
    messages = (
        (tracks[begin.track].host, begin.at, tracks[end.track].host, end.at)
        for _, begin, end in found.flows
    )
    clocks = align(epochs, messages) if epochs else []
    offsets = {each.host: each.offset_nanoseconds for each in clocks}
    flows = [each for each in found.flows if _is_possible(each, tracks, offsets)]
    return Trace(
        job.name,
        seconds,
        tuple(tracks),
        tuple(flows),
        found.cut + 2 * (len(found.flows) - len(flows)),
        tuple(clocks),
        tuple(
            f"{each.name} (pid {each.pid}): {each.silence.why}"
            for each in participants
            if each.silence is not None
        ),
    )


def _is_possible(flow: Flow, tracks: Sequence[Track], offsets: Mapping[str, int]) -> bool:
    """Whether a flow has left before the span was over at which it arrives. Else its ends only have
    the same number: one is of an earlier connection."""
    begin, end = tracks[flow.begin.track], tracks[flow.end.track]
    left = flow.begin.at + offsets[begin.host]
    return left < end.spans[flow.end.span].end + offsets[end.host]
