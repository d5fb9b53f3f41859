"""Looking inside a running job.

looking.py       asks the processes of a job: `jobs`, `status`, `waits`, `stacks`, `graph`
grouping.py      which processes belong to one job
participants.py  who takes part in a job, and that one waits for another
explanation.py   who waits for whom, in a circle or not, and who holds the others up
activities.py    which of the things that workers do are blocked, and by which others
cycles.py        circles in a graph
sampling.py      who is waited for how often, in a job that is only slow: `holdups`
launched.py      workers as only their launcher knows them, in words
call_rates.py    who calls whom, how often, and how long it takes: `calls`
metrics.py       the counters of a job, for Prometheus
context_graph.py     an autograd context over workers
context_pictures.py  views of it: Graphviz, SVG
native.py        stacks seen from outside, by py-spy
tracing.py       what all workers did for some seconds: `trace`
tracks.py        what one process has recorded for it
flows.py         which spans of a trace belong together
clocks.py        how far the clocks of hosts are apart
chrome_trace.py  a trace in the Chrome trace format
steps.py         the steps of a training, told by its program: `step`
text.py          what a job waits for, as text
tables.py        jobs and workers, as tables for the terminal
wait_reports.py  what every worker of a group waits for, asked from within: `explain_waits`

What processes tell is in `lockstitch.attach`. Nothing here but `wait_reports` needs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lockstitch.observe.call_rates import Calls, Edge, FunctionCalls, calls
    from lockstitch.observe.context_graph import ContextGraph, ContextNotFoundError
    from lockstitch.observe.context_pictures import Stitch
    from lockstitch.observe.explanation import Culprit, Explanation
    from lockstitch.observe.grouping import Job, JobNotFoundError
    from lockstitch.observe.looking import graph, holdups, jobs, stacks, status, waits
    from lockstitch.observe.participants import Participant, Wait
    from lockstitch.observe.sampling import Holdup
    from lockstitch.observe.steps import step
    from lockstitch.observe.tracing import Trace, trace
    from lockstitch.observe.tracks import Track
    from lockstitch.observe.wait_reports import explain_waits

__all__ = [
    "jobs",
    "status",
    "calls",
    "waits",
    "holdups",
    "stacks",
    "graph",
    "trace",
    "step",
    "explain_waits",
    "Job",
    "Explanation",
    "Participant",
    "Wait",
    "Culprit",
    "Holdup",
    "ContextGraph",
    "Stitch",
    "ContextNotFoundError",
    "JobNotFoundError",
    "Calls",
    "Edge",
    "FunctionCalls",
    "Trace",
    "Track",
]

_HOMES: Final = {
    "looking": "jobs status waits holdups stacks graph",
    "sampling": "Holdup",
    "call_rates": "Calls Edge FunctionCalls calls",
    "context_graph": "ContextGraph ContextNotFoundError",
    "context_pictures": "Stitch",
    "explanation": "Explanation Participant Wait Culprit",
    "steps": "step",
    "tracing": "Trace trace",
    "tracks": "Track",
    "grouping": "Job JobNotFoundError",
    "wait_reports": "explain_waits",
}

if not TYPE_CHECKING:  # else a type checker would find any name here

    def __getattr__(name: str) -> object:
        # Commands import this package too, and have no use for torch.
        for home, names in _HOMES.items():
            if name in names.split():
                return getattr(import_module(f"{__name__}.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
