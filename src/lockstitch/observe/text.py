"""What a job waits for, as text: the causes first, then each worker.

A view of `Explanation`; O(N) lines for N workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from lockstitch.attach.system import STATES
from lockstitch.attach.values import in_words
from lockstitch.observe.launched import launched_in_words
from lockstitch.observe.participants import function_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lockstitch.attach.values import (
        CodeLine,
        OtherWait,
        PendingCall,
        ServedCall,
        ThreadReport,
        WorkerReport,
    )
    from lockstitch.observe.explanation import Culprit, Explanation
    from lockstitch.observe.grouping import Job
    from lockstitch.observe.participants import Participant, Wait

T = TypeVar("T")
U = TypeVar("U")
C = TypeVar("C", "PendingCall", "ServedCall")

_FEW: Final = 8
_PARKED: Final = "holds no thread: it waits for a future or for references"
_OTHER_ORDER: Final = "they have submitted collectives in another order, or one has left one out"
_FROM_OUTSIDE: Final = "`lockstitch stacks` looks at it from outside, where py-spy is installed"
_OVER: Final = "its program is over, and waits for threads of its own that are no daemons"
_BUSY: Final = "all that may serve calls (num_worker_threads) do so"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A part of the text. `kind`: what it tells of; "nothing" where nobody waits for long."""

    kind: Literal["cycle", "culprit", "nothing", "worker"]
    lines: tuple[str, ...]


def paragraphs(explanation: Explanation) -> list[Paragraph]:
    """Returns the text without its headline: the causes, then each worker."""
    by_name = {each.name: each for each in explanation.participants}
    causes = [
        *(Paragraph("cycle", tuple(_circle_lines(each, by_name))) for each in explanation.circles),
        *(
            Paragraph("culprit", tuple(_culprit_lines(each, by_name)))
            for each in _alike_culprits(explanation.culprits)
        ),
    ]
    launcher = explanation.job.launcher
    if launcher is not None and launcher.waits:
        lines = tuple(f"the launcher waits: {each.what}" for each in launcher.waits)
        causes.insert(0, Paragraph("culprit", lines))
    nothing = Paragraph("nothing", ("Nobody waits for another one of them for long.",))
    workers = [Paragraph("worker", tuple(_participant_lines(each))) for each in by_name.values()]
    return [*(causes or [nothing]), *workers]


def explanation_lines(explanation: Explanation) -> list[str]:
    """Returns the text, line by line."""
    lines = [headline(explanation.job), *unreached_lines(explanation.job)]
    lines.append("")
    for paragraph in paragraphs(explanation):
        lines += paragraph.lines
        if paragraph.kind != "worker":
            lines.append("")
    return lines


def stack_lines(participants: Sequence[Participant], *, everything: bool = False) -> list[str]:
    """Returns the stacks of the threads that were told, outermost line first; those in which only
    libraries run by name, unless `everything` is asked for."""
    lines: list[str] = []
    for one in participants:
        lines.append(f"{one.name}{identity(one)}")
        if one.silence is not None:
            lines.append(f"  {one.silence.why}{_system_in_words(one)}")
        lines += [f"    {line}" for line in one.outside.splitlines()]
        told = () if one.outside else one.threads
        for thread in told:
            if thread.kind == "library" and not everything:
                continue
            serves = f", serves {thread.serves}" if thread.serves else ""
            lines.append(f"  {_name(thread)}{_state_in_words(thread)}{serves}")
            lines += [f"    {line}{_text(line)}" for line in thread.stack]
        folded = [_name(each) for each in told if each.kind == "library" and not everything]
        if folded:
            lines.append(f"  without code of the program: {', '.join(folded)}")
        lines.append("")
    return lines


def _name(thread: ThreadReport) -> str:
    return thread.name or f"thread {thread.ident:#x}"


def headline(job: Job) -> str:
    """Returns what a job is, in a line."""
    workers = len(job.cards)
    return (
        f"job {job.name} (pid {job.pid}): {workers} worker{'s' if workers != 1 else ''}, "
        f"since {duration(job.age_seconds)}"
    )


def unreached_lines(job: Job) -> list[str]:
    """Returns what is not known of a job, and why."""
    return [f"of another host nothing is known: {each}" for each in job.unreached]


def duration(seconds: float) -> str:
    """Returns a time span, such as `42 s`, `3 min 5 s`, `2 h 10 min` or `3 d 4 h`."""
    whole = int(seconds)
    for unit, larger, smaller in ((86400, "d", "h"), (3600, "h", "min"), (60, "min", "s")):
        if whole >= unit:
            part = whole % unit // {"h": 3600, "min": 60, "s": 1}[smaller]
            return f"{whole // unit} {larger} {part} {smaller}"
    return f"{whole} s"


def ages_in_words(seconds: Sequence[float], count: int) -> str:
    """Returns how long ago so many things began, `3.0 s` or `1.0 s to 3.0 s (2 times)`: the first
    and the last of them, at least, are among `seconds`."""
    first, last = f"{max(seconds):.1f} s", f"{min(seconds):.1f} s"
    span = first if first == last else f"{last} to {first}"
    return span if count == 1 else f"{span} ({count} times)"


def identity(one: Participant) -> str:
    """Returns rank and process of a participant, in brackets."""
    rank = f"rank {one.rank}, " if one.rank and one.name != f"rank {one.rank}" else ""
    host = f" on {one.host}" if one.host else ""
    return f" ({rank}pid {one.pid}{host})"


def where_it_stands(one: Participant | None) -> str:
    """Returns where somebody's main thread is, or why that is not known."""
    if one is None:
        return "no process of it is found on this host"
    if one.silence is not None:
        return f"{one.silence.why}{_system_in_words(one)}"
    if one.launched is not None:
        return launched_in_words(one.launched)
    thread = one.main_thread
    if thread is None and one.report is not None and one.report.threads:
        return "its main thread is in no code of Python's now: the program has ended, say"
    if thread is None or thread.at is None:
        return "where its main thread is was not told"
    is_over = (thread.at.function, Path(thread.at.file).name) == ("_shutdown", "threading.py")
    is_at = f"its main thread{_state_in_words(thread)} at {thread.at}{_text(thread.at)}"
    return _OVER if is_over else is_at


# ---------------------------------------------------------------- inside


def _circle_lines(circle: Sequence[Wait], by_name: Mapping[str, Participant]) -> Iterator[str]:
    if len(circle) == 1:
        yield f"{circle[0].waiter} waits for itself:"
    else:
        names = " → ".join([*(each.waiter for each in circle), circle[0].waiter])
        yield f"{len(circle)} workers wait for each other in a cycle: {names}"
    if len(circle) > 1 and all(wait.kind == "collective" for wait in circle):
        yield f"  {_OTHER_ORDER}"
    for wait in circle:
        yield f"  {wait.waiter} {wait.what}"
        target = by_name.get(wait.target)
        if wait.kind != "call":
            yield f"    {wait.target}: {where_it_stands(target)}"
        elif target is not None:
            yield f"    {wait.target} {_served_in_words(target, wait)}"


def _served_in_words(callee: Participant, wait: Wait) -> str:
    """What a callee does with a call."""
    served = callee.served(wait)
    if served is None:
        return f"has not begun it; {where_it_stands(callee)}"
    if served.at is None:
        return "serves it, holding no thread: it waits for a future or for references"
    return f"serves it at {served.at}{_text(served.at)}"


def _alike_culprits(culprits: Iterable[Culprit]) -> Iterable[list[Culprit]]:
    """Those together for whom the same ones wait for the same."""
    found = grouped(
        ((_waiters(each), *_shared_lines(each.waits), each.is_waiting), each) for each in culprits
    )
    return [alike for _, alike in found]


def _waiters(culprit: Culprit) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.waiter for each in culprit.waits))


def _culprit_lines(alike: Sequence[Culprit], by_name: Mapping[str, Participant]) -> Iterator[str]:
    first = alike[0]
    names, waiters = _names([each.participant for each in alike]), _names(_waiters(first))
    if len(alike) == 1:
        its = "does not wait for others in that" if first.is_waiting else "waits for nobody"
        yield f"{names} is waited for by {waiters}, and {its}:"
        yield from _few(_shared_lines(first.waits))
        yield from _where_culprit_stands(by_name.get(names))
        return
    theirs = "do not wait for others in that" if first.is_waiting else "wait for nobody"
    yield f"{names} are waited for by {waiters}, and {theirs}:"
    yield from _few(
        each.replace("it has not submitted", "they have not submitted", 1)
        for each in _shared_lines(first.waits)
    )
    yield from _few(
        f"{each.participant}: {where_it_stands(by_name.get(each.participant))}" for each in alike
    )


def _where_culprit_stands(one: Participant | None) -> Iterator[str]:
    yield f"  {where_it_stands(one)}"
    if one is None:
        return
    if one.silence is not None and one.silence.system is not None:
        yield f"  {_FROM_OUTSIDE}"
    yield from _few(
        f"{function_in_words(call.function)}, which it serves for {call.caller}, "
        + (f"is at {call.at}{_text(call.at)}" if call.at is not None else _PARKED)
        for call in one.serving
    )
    if one.worker is not None and one.worker.backlog:
        yield f"  {one.worker.backlog} calls wait for a thread: {_BUSY}"
    yield from _few(_other_threads(one))


def _shared_lines(waits: Sequence[Wait]) -> Iterator[str]:
    """What is waited for; of calls of one function by one worker the oldest."""
    for _, found in grouped(
        ((each.waiter, each.what.partition(", ")[0] if each.kind == "call" else each.what), each)
        for each in waits
    ):
        count = sum(each.count for each in found)
        more = f" (and {count - 1} more such calls)" if count > 1 else ""
        yield f"{_shared(max(found, key=lambda each: each.seconds))}{more}"


def _shared(wait: Wait) -> str:
    """What is waited for, without the time, which differs between those who wait."""
    if wait.kind == "collective":
        return f"it has not submitted {wait.what.partition(': ')[2].partition(', submitted')[0]}"
    return f"{wait.waiter} {wait.what}"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_FEW])
    return shown if len(names) <= _FEW else f"{shown} and {len(names) - _FEW} more"


def _participant_lines(one: Participant) -> Iterator[str]:
    yield f"{one.name}{identity(one)}"
    yield f"  {where_it_stands(one)}"
    worker = one.worker
    if worker is not None:
        yield from waits_in_words(worker)
    yield from (f"  {each.what}{_since(each)}" for each in one.process_waits)
    for group in one.groups:
        where = f"group {group.name!r}, " if group.name else ""
        yield from (
            f"  {where}rank {group.rank} of {group.size}: {in_words(wait)}" for wait in group.waits
        )
    yield from _few(_other_threads(one))
    yield from (f"  {gap}" for gap in (() if one.report is None else one.report.gaps))


def waits_in_words(worker: WorkerReport) -> Iterator[str]:
    """Yields what a worker waits for, and what it serves, a line each."""
    yield from _few(
        f"called {function_in_words(function)} on {to}, {_ages(calls)} ago: no answer yet"
        for (function, to), calls in grouped(
            ((call.function, call.to), call) for call in worker.calls
        )
    )
    yield from _few(
        f"serves {function_in_words(function)} for {caller}, since {_ages(calls)}: {where}"
        for (function, caller, where), calls in grouped(
            ((call.function, call.caller, where_served(call)), call) for call in worker.serving
        )
    )
    if worker.backlog:
        yield f"  {worker.backlog} calls wait for a thread"
    yield from (f"  {each.what}{_since(each)}" for each in worker.waits)


def _since(wait: OtherWait) -> str:
    return "" if wait.seconds is None else f", since {wait.seconds:.1f} s"


def where_served(call: ServedCall) -> str:
    """Returns at which line a call is, or that it is at none."""
    return _PARKED if call.at is None else f"{call.at}{_text(call.at)}"


def _other_threads(one: Participant) -> Iterator[str]:
    """The threads of the program besides the main one that serve nobody."""
    for thread in one.other_threads():
        if thread.at is not None:
            state = _state_in_words(thread)
            yield f"thread {thread.name!r}{state} at {thread.at}{_text(thread.at)}"


def grouped(found: Iterable[tuple[T, U]]) -> Iterable[tuple[T, list[U]]]:
    """Returns what is the same several times once, with all that goes with it."""
    those: dict[T, list[U]] = {}
    for what, one in found:
        those.setdefault(what, []).append(one)
    return those.items()


def _ages(calls: Sequence[C]) -> str:
    times = [each.seconds for each in calls]
    times += [each.latest for each in calls if each.latest is not None]
    return ages_in_words(times, sum(each.count for each in calls))


def _few(lines: Iterable[str]) -> Iterator[str]:
    """Some of what may be much, each thing once."""
    found = list(dict.fromkeys(lines))
    yield from (f"  {each}" for each in found[:_FEW])
    if len(found) > _FEW:
        yield f"  … and {len(found) - _FEW} more"


def _state_in_words(thread: ThreadReport) -> str:
    return f" {STATES[thread.state]}" if thread.state in STATES else ""


def _system_in_words(one: Participant) -> str:
    told = None if one.silence is None else one.silence.system
    if told is None:
        return "; its process is gone"
    kernel = f" in the kernel's {told.waits_in}" if told.waits_in else ""
    state = STATES.get(told.state, "")
    return (
        f"; it {state}{kernel}, has used {told.cpu_seconds:.1f} s of processor time and holds "
        f"{told.memory / 2**20:.0f} MB"
    )


def _text(line: CodeLine) -> str:
    return f": {line.text}" if line.text else ""
