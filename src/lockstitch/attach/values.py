"""What a process tells of itself, as plain values. Times are in seconds, sizes in bytes.

No value holds what a call's arguments or a tensor contain: names, lines of source code, counts and
sizes only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_SHOWN: Final = 16


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of source code that a thread is at; `text` is empty where the file cannot be read."""

    file: str
    line: int
    function: str
    text: str = ""

    def __str__(self) -> str:
        if not self.file:
            return "no line of the program"
        return f"{self.file}:{self.line} in {self.function}"


NO_LINE: Final = CodeLine("", 0, "")
"""Where a thread is in this library, or in C called from there."""


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """A thread of Python's. `at`: the innermost line of the user's own code, else of any code.
    `state`: as the system names it, such as `R` (runs) or `S` (sleeps); empty where it does not
    tell. `stack`: outermost first; empty unless it was asked for. `serves`: the function that it
    runs for another worker. `stands_in`: what keeps it from going on: a "lock" (or another thing
    that only a thread of its process can give, without a limit of time), a "sleep", code of
    "lockstitch" that waits or works; empty where it runs, reads, or is not known to stand."""

    name: str
    ident: int
    native_id: int
    kind: Literal["main", "serving", "user", "library"]
    state: str
    at: CodeLine | None
    stack: tuple[CodeLine, ...] = ()
    serves: str = ""
    stands_in: Literal["", "lock", "sleep", "lockstitch"] = ""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call without an answer yet. `number` tells the calls from one worker to another apart;
    `thread` is the one that waits for the answer, 0 where none does, or it is not known. Of such
    calls of one function to one worker the oldest stands for all: `count` of them, the latest of
    which was made `latest` seconds ago."""

    to: str
    function: str
    seconds: float
    number: int
    thread: int
    count: int = 1
    latest: float | None = None


@dataclass(frozen=True, slots=True)
class ServedCall:
    """A call that is being served. `thread`: 0 while it holds none, since it waits for a future or
    for references to be confirmed. `number`: that of the `PendingCall` of the caller. Of calls of
    one function by one worker that hold no thread and are at one line the oldest stands for all,
    as in `PendingCall`; `numbers` are those of all, as pairs of a first and a last one."""

    caller: str
    function: str
    seconds: float
    number: int
    thread: int
    at: CodeLine | None
    count: int = 1
    latest: float | None = None
    numbers: tuple[int, ...] = ()

    def is_of(self, caller: str, number: int) -> bool:
        """Returns whether this is how that call is served."""
        spans = zip(self.numbers[::2], self.numbers[1::2], strict=True)
        is_among = number == self.number or any(first <= number <= last for first, last in spans)
        return caller == self.caller and is_among


@dataclass(frozen=True, slots=True)
class OtherWait:
    """What a worker waits for besides calls: a barrier, a backward pass. `workers`: those for which
    it does, by name, as far as they are known, and `ranks` others, by rank. `is_apart`: it is the
    program that waits so, and nothing that the worker serves. `seconds`: for how long it has
    waited, None where that is not known."""

    what: str
    workers: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    is_apart: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Counter:
    """A number under a name of the conventions of Prometheus. A `counter` only grows; `per_second`:
    how fast it did while the question was answered, where that was asked for."""

    name: str
    value: float
    kind: Literal["counter", "gauge"] = "gauge"
    per_second: float | None = None


@dataclass(frozen=True, slots=True)
class CallTraffic:
    """Calls of a function that a worker has made on a `peer`, or served for it, since counting
    began: how many, how many of them failed, how long they took together (made: until the result
    was there; served: until they were answered), and the bytes of the values sent and received,
    tensors included, whatever way they went. `bins`: how many took how long, by
    `lockstitch.attach.traffic.BOUNDS`, without the empty ones at the end."""

    role: Literal["made", "served"]
    function: str
    peer: str
    count: int
    failed: int
    seconds: float
    sent: int
    received: int
    bins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The spans of a process (`lockstitch.attach.spans`), from `began_at` to `ended_at`, in
    nanoseconds of its monotonic clock; `epoch`: what is to be added for a time since the epoch.
    `dropped`: how many were noted, and pushed out by later ones. `numbers` are the spans, a row
    each; texts stand in them by their places in `texts`."""

    began_at: int
    ended_at: int
    epoch: int
    dropped: int
    texts: tuple[str, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SentTensors:
    """Tensors that a worker has sent within an autograd context, as one message, to the worker of
    rank `to`. `stitch` names the message in the whole job; `tensors` are their dtypes and shapes;
    `made_of`: the stitches received before from which they were computed. `state`: whether, in the
    latest backward pass, their gradient has "arrived" or is "awaited"; else empty."""

    stitch: str
    to: int
    tensors: tuple[str, ...]
    made_of: tuple[str, ...] = ()
    state: Literal["", "arrived", "awaited"] = ""


@dataclass(frozen=True, slots=True)
class ContextReport:
    """A worker's part of an autograd context. `gradients`: of how many tensors it holds one."""

    id: int
    sent: tuple[SentTensors, ...]
    gradients: int = 0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker of `lockstitch.rpc`."""

    name: str
    rank: int
    calls: tuple[PendingCall, ...] = ()
    serving: tuple[ServedCall, ...] = ()
    backlog: int = 0
    """Calls that wait for a thread."""
    waits: tuple[OtherWait, ...] = ()
    counters: tuple[Counter, ...] = ()
    contexts: tuple[ContextReport, ...] = ()
    traffic: tuple[CallTraffic, ...] = ()
    """Calls by function and peer, since somebody has asked for counters."""
    recent: tuple[CallTraffic, ...] = ()
    """Those that ended while the question was answered, in `recent_seconds`."""
    recent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CollectiveWait:
    """A collective that some ranks have submitted and others have not, or that is under way.
    `is_submitted`: whether this rank has, `seconds` ago; else `by` are the ranks that have.
    `missing`: the ranks that have not, None where that is not known here. `label`: what the program
    calls it, where it does not know the name."""

    kind: str
    name: str
    is_submitted: bool
    seconds: float
    missing: tuple[int, ...] | None
    by: tuple[int, ...] = ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A rank of reductions: of `lockstitch.hvd`, or of a process group of torch.distributed, whose
    name it has then."""

    kind: Literal["hvd", "c10d"]
    name: str
    rank: int
    size: int
    backend: str = ""
    waits: tuple[CollectiveWait, ...] = ()
    counters: tuple[Counter, ...] = ()


@dataclass(frozen=True, slots=True)
class StepReport:
    """The last step that a program has told of (`lockstitch.observe.step`). `at`: seconds since the
    epoch."""

    number: int
    at: float
    per_second: float
    values: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class LaunchedWorker:
    """A worker's process as its launcher knows it. `host`: where it runs, if that is elsewhere;
    `pid`: its number there, 0 while that is not known; `how` it has ended, empty while it runs."""

    rank: int
    pid: int
    host: str
    started_at: float
    ended_at: float | None = None
    how: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """Who a process is: what it leaves for others to read, so that it is known where it does not
    answer. `born`: when it began, in clock ticks since the system's start, which tells two
    processes of one number apart. `job`: what the launcher, or LOCKSTITCH_JOB, calls the job, and
    `keys` what all its processes have in common: where they meet, who has started them."""

    pid: int
    born: int
    parent: int
    version: str
    kind: Literal["worker", "launcher"]
    program: str
    job: str
    rank: str
    names: tuple[str, ...]
    keys: tuple[str, ...]
    started_at: float
    gateway: str = ""
    """Where those who have the job's secret can ask about it (`--address`), if this process listens
    for that."""


@dataclass(frozen=True, slots=True)
class SystemReport:
    """What the system tells of a process. `state`: as in `ThreadReport`, "R" where any of another
    process's threads runs; `cpu_seconds`: of all its threads; `memory`: its resident bytes;
    `waits_in`: the function of the kernel in which its main thread sleeps, empty where none does or
    that is not told."""

    state: str
    cpu_seconds: float
    memory: int
    threads: int
    waits_in: str = ""
    files: int = 0
    """How many it has open, sockets and the like included; 0 where that is not told."""
    cpu_share: float | None = None
    """Of one core, while the question was answered, where that was asked for: 1.0 is all of it."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A process that was found and did not answer, and why. `system`: None where it is gone."""

    card: Card
    why: str
    system: SystemReport | None
    host: str = ""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What a process tells. `gaps`: what it could not find out in time, or not at all."""

    card: Card
    host: str
    system: SystemReport | None
    workers: tuple[WorkerReport, ...] = ()
    groups: tuple[GroupReport, ...] = ()
    threads: tuple[ThreadReport, ...] = ()
    launched: tuple[LaunchedWorker, ...] = ()
    step: StepReport | None = None
    gaps: tuple[str, ...] = ()
    recording: Recording | None = None
    told_at: float = 0.0
    """When, in seconds since the epoch."""
    waits: tuple[OtherWait, ...] = ()
    """What it waits for in whole: to meet others, or a forked slot."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a process is asked. `stacks`: all lines of all threads, not only where each is;
    `seconds`: within which it is to answer with what it knows by then."""

    waits: bool = False
    counters: bool = False
    threads: bool = False
    stacks: bool = False
    contexts: bool = False
    seconds: float = 1.0
    rate_seconds: float = 0.0
    """For so long it is to look how fast its counters grow; 0: not at all."""
    record_seconds: float = 0.0
    """For so long it is to record spans; 0: not at all."""
    most_spans: int = 0
    """So many of them it is to keep, the latest; 0: as many as it likes."""
    lends: bool = False
    """It is to answer with nothing but the socket at which it listens for other hosts."""


@dataclass(frozen=True, slots=True)
class FarQuestion:
    """What a gateway is asked. `is_whole`: it is to ask those of the job's other hosts, too."""

    question: Question
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class FarAnswer:
    """What the processes of a job have told a gateway (`asking.Answers`)."""

    reports: tuple[ProcessReport, ...]
    silent: tuple[Silence, ...]
    unreached: tuple[str, ...] = ()


def in_words(wait: CollectiveWait) -> str:
    """Returns a collective and whom it waits for, as a sentence."""
    if not wait.is_submitted:
        waits = f"{ranks_in_words(wait.by)} wait{'s' * (len(wait.by) == 1)}"
        what = wait.label or (repr(wait.name) if wait.name else "something")
        whose = waits if wait.by else "other ranks wait"
        return f"{whose} for {what}, which this one has not submitted"
    if wait.missing is None:
        whom = "which ranks have not submitted it is not known here"
    elif not wait.missing:
        whom = "all ranks have submitted it, it is under way"
    else:
        have = "has" if len(wait.missing) == 1 else "have"
        verb = "joined" if wait.kind == "join" else "submitted it"
        whom = f"{ranks_in_words(wait.missing)} {have} not {verb}"
    what = wait.label or f"{wait.kind} {wait.name!r}"
    return f"{what}, submitted {wait.seconds:.1f} s ago: {whom}"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Returns `rank 3`, or `ranks 1, 2`; many are cut short."""
    shown = ", ".join(map(str, ranks[:_MOST_SHOWN]))
    rest = ", …" if len(ranks) > _MOST_SHOWN else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{rest}"
