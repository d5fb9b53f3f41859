"""A world of some real processes on this host: how long it takes to come and go, and what a worker
costs in it.

The processes are there before the clock starts; what is timed is joining, from the word to the last
one's answer, and `shutdown` likewise. In between the first worker has called every other one.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases.calls import nothing
from benchmarks.cases.timing import timed
from benchmarks.libraries import CALLER
from benchmarks.member import Do, Joined, Measure, Seat
from benchmarks.result import quartiles
from benchmarks.worlds import START_SECONDS, Member, all_do, threads_of

if TYPE_CHECKING:
    from benchmarks.cases.timing import Sample
    from benchmarks.libraries import Library

_CALL_SECONDS = 0.2


@dataclass(frozen=True)
class Costs:
    """Of a world of some size, by one library."""

    start_seconds: float
    stop_seconds: float
    call_seconds: float
    threads: float
    """That the library adds to a worker, in the median."""
    most_threads: float
    memory_mb: float
    """That a worker does not share with others, in the median."""
    most_sockets: float


def measure_world(library: str, size: int, patience_seconds: float, log: Path) -> Costs:
    """Raises CaseError where a worker fails or does not answer in time."""
    names = [CALLER, *(f"worker{rank}" for rank in range(1, size))]
    members: list[Member] = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        place = f"file://{folder}/meeting"
        try:
            members += [
                Member(Seat(library, name, rank, size, place, waits=True), log)
                for rank, name in enumerate(names)
            ]
            for member in members:
                member.answer(START_SECONDS)
            return _measure(members, names, patience_seconds)
        finally:
            for member in members:
                member.kill()


def _measure(members: list[Member], names: list[str], patience_seconds: float) -> Costs:
    start = time.perf_counter()
    joined: list[Joined] = all_do(members, ["join"] * len(members), patience_seconds)
    start_seconds = time.perf_counter() - start
    first = members[0]
    first.carry_out(Do(_call_everybody, (names[1:],)), patience_seconds)
    calls = first.carry_out(Measure(_CallTo(names[-1]), {}, _CALL_SECONDS), patience_seconds)
    threads = [
        float(threads_of(member.pid) - each.threads_before)
        for member, each in zip(members, joined, strict=True)
    ]
    memory = [_private_mb(member.pid) for member in members]
    sockets = [_sockets(member.pid) for member in members]
    start = time.perf_counter()
    all_do(members, [Do(_shut_down)] * len(members), patience_seconds)
    return Costs(
        start_seconds,
        time.perf_counter() - start,
        quartiles(calls.seconds)[1],
        quartiles(threads)[1],
        max(threads),
        quartiles(memory)[1],
        max(sockets),
    )


@dataclass(frozen=True)
class _CallTo:
    """A case: a no-op to that worker."""

    name: str

    def __call__(self, library: Library) -> Sample:
        return timed(lambda: library.rpc.rpc_sync(self.name, nothing))


def _call_everybody(library: Library, names: list[str]) -> None:
    for name in names:
        library.rpc.rpc_sync(name, nothing)


def _shut_down(library: Library) -> None:
    library.rpc.shutdown()


def _private_mb(pid: int) -> float:
    summary = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", summary, re.MULTILINE)
    return sum(map(int, sizes)) / 1024


def _sockets(pid: int) -> float:
    count = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += os.readlink(descriptor).startswith("socket:")
        except OSError:  # closed meanwhile
            continue
    return float(count)
