"""Reductions between the processes of one host, beside Gloo in the same processes.

    python -m benchmarks.collectives [--ranks 2 4] [--quick] [--only resident]

Each rank is a process with one thread for arithmetic. The two libraries take turns, a few
operations each, so that what else happens on the machine hits both; the figures are medians over
all operations of a case, on rank 0, in milliseconds. `private` tensors are ordinary ones,
`resident` ones live where the other ranks reach them (`Session.resident`). `of memcpy`: our speed
as a share of that of one rank that copies as much while the others sleep.

*Negotiation* is what lies between the moment at which the last rank asks for a bucket and that at
which the last one knows that all have. Where ranks share processors the last one waits for a
processor before it can look, with large buckets also for those who are already at work on them.
How long, the same processes show *by plain words*: each stores one when it asks, looks for those
of the others, and does the same sums, without names, tables or checks.
A *killed rank* dies in the midst of allreduces of 32 MB and is timed until the last survivor has
its error. The kernel says that the process has *ended* when its memory has been given back.
Both come with every number of ranks, unless `--only` names something else.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import select
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed as dist

from benchmarks.plain_words import PlainWords
from lockstitch.collectives import SUM, SessionOptions, Step, open_session
from lockstitch.errors import RankLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.collectives import Session
    from lockstitch.collectives.options import BackendName

KB, MB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Case:
    """So many tensors of so many bytes at once."""

    name: str
    size: int
    count: int = 1
    is_resident: bool = False
    turns: int = 20
    per_turn: int = 1


CASES = [
    Case("4 KB", 4 * KB, turns=60, per_turn=20),
    Case("1 MB private", MB, turns=40, per_turn=5),
    Case("25 MB private", 25 * MB, turns=20),
    Case("100 MB private", 100 * MB, turns=10),
    Case("1 MB resident", MB, is_resident=True, turns=40, per_turn=5),
    Case("25 MB resident", 25 * MB, is_resident=True, turns=20),
    Case("100 MB resident", 100 * MB, is_resident=True, turns=10),
    Case("64 x 64 KB at once", 64 * KB, count=64, turns=30),
]
_NEGOTIATION, _KILL = "negotiation", "a rank killed"
_BUCKETS = 4
_ROUNDS = 10
_Times = tuple[list[float], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="a quarter of the turns")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    arguments = parser.parse_args()
    heads = f"{'ours':>10}{'Gloo':>10}{'Gloo / ours':>13}{'memcpy':>10}{'of memcpy':>11}"
    print(f"{'case':22}{'ranks':>6}{heads}")
    for ranks in arguments.ranks:
        cases = [case for case in CASES if arguments.only in case.name]
        for case, (ours, gloo, copy) in zip(
            cases, _measure(ranks, cases, arguments.quick), strict=True
        ):
            ratios = f"{gloo / ours:13.1f}{copy:10.3f}{copy / ours:11.2f}"
            print(f"{case.name:22}{ranks:6}{ours:10.3f}{gloo:10.3f}{ratios}", flush=True)
        if arguments.only in _NEGOTIATION:
            turns = 200 if arguments.quick else 1000
            for size, what in ((4 * MB, "4 MB"), (MB, "1 MB"), (4096, "4 KB")):
                found = negotiation(ranks, turns, size=size)
                print(
                    f"{f'{_NEGOTIATION}, {what}':22}{ranks:6}{found.told_bytes:10.0f} bytes from "
                    f"each rank, {found.median:.0f} µs (one in ten: {found.late:.0f}); "
                    f"by plain words {found.plain:.0f}",
                    flush=True,
                )
        if arguments.only in _KILL:
            kills = [_time_to_notice(ranks) for _ in range(1 if arguments.quick else 5)]
            raised, ended = map(statistics.median, zip(*kills, strict=True))
            print(
                f"{_KILL:22}{ranks:6}{raised:10.1f} ms until the last raises; "
                f"the process has ended after {ended:.1f}"
            )


# ---------------------------------------------------------------- processes


def _measure(ranks: int, cases: list[Case], is_quick: bool) -> Iterator[tuple[float, float, float]]:
    with processes(ranks, _rank_measures, cases, is_quick) as pipes:
        for _ in cases:
            yield pipes[0].recv()


class Negotiated(NamedTuple):
    """What the negotiation of a bucket takes."""

    told_bytes: float
    """What each rank says."""
    median: float
    """Microseconds until all know of all."""
    late: float
    """The 90th percentile of them."""
    plain: float
    """Their median where each rank knows by a plain word of every other."""


def negotiation(
    ranks: int, turns: int, backend: BackendName = "auto", size: int = 4 * MB
) -> Negotiated:
    """Of a bucket of `size` bytes in the steady state."""
    words = torch.zeros(2 * ranks, dtype=torch.int64).share_memory_()
    buckets = torch.zeros(_BUCKETS, ranks, size // 4).share_memory_()
    plan, shared = (turns, backend), (words, buckets)
    with processes(ranks, _rank_negotiates, plan, shared) as pipes:
        told = [pipe.recv() for pipe in pipes]
    ours = _until_all_know([times for _, times, _ in told])
    plain = _until_all_know([times for _, _, times in told])
    return Negotiated(
        told[0][0], statistics.median(ours), ours[len(ours) * 9 // 10], statistics.median(plain)
    )


def _until_all_know(times: list[_Times]) -> list[float]:
    """From the last who asked until the last who knew, in microseconds, ascending."""
    asked, known = zip(*times, strict=True)
    return sorted(
        1e6 * (max(last) - max(first))
        for first, last in zip(zip(*asked, strict=True), zip(*known, strict=True), strict=True)
    )


def _time_to_notice(ranks: int) -> tuple[float, float]:
    """From the kill until the last survivor has its error, and until the killed process has ended,
    in milliseconds."""
    with processes(ranks, _rank_waits_in_vain) as pipes:
        pids = [pipe.recv() for pipe in pipes]
        life = os.pidfd_open(pids[0])
        begin = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        select.select([life], [], [])
        ended = time.monotonic()
        os.close(life)
        raised = max(pipe.recv() for pipe in pipes[1:])
    return 1e3 * (raised - begin), 1e3 * (ended - begin)


class processes:  # noqa: N801 - reads as a function
    """Rank processes that run `function(rank, size, store, pipe: Any, *arguments)`."""

    def __init__(self, ranks: int, function: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")  # torch sees to shared tensors
        self._folder = tempfile.TemporaryDirectory()
        self._members = []
        for rank in range(ranks):
            near, far = context.Pipe()
            file = str(Path(self._folder.name) / "store")
            process = context.Process(
                target=function, args=(rank, ranks, file, far, *arguments), daemon=True
            )
            process.start()
            far.close()
            self._members.append((process, near))

    def __enter__(self) -> list[Any]:
        return [pipe for _, pipe in self._members]

    def __exit__(self, kind: object, *_error: object) -> None:
        for process, _ in self._members:
            process.join(10 if kind is None else 0)
            process.kill()
            process.join()
        self._folder.cleanup()


def _rank_measures(
    rank: int, size: int, file: str, pipe: Any, cases: list[Case], is_quick: bool
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(file + ".gloo"), rank=rank, world_size=size
    )
    with open_session(rank, size, dist.FileStore(file)) as session:
        for case in cases:
            turns = max(4, case.turns // (4 if is_quick else 1))
            figures = _measure_case(session, case, turns)
            if rank == 0:
                pipe.send(figures)
    dist.destroy_process_group()


def _rank_negotiates(
    rank: int,
    size: int,
    file: str,
    pipe: Any,
    plan: tuple[int, BackendName],
    shared: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Buckets as an optimizer has them: resident, under names that are known."""
    torch.set_num_threads(1)
    times: dict[Step, list[float]] = {Step.SUBMITTED: [], Step.READY: [], Step.DONE: []}
    turns, backend = plan
    plain = PlainWords(rank, size, *shared)
    count = shared[1].shape[-1]
    options = SessionOptions(backend)
    with open_session(rank, size, dist.FileStore(file), options) as session:
        buckets = [session.resident((count,), torch.float32).zero_() for _ in range(_BUCKETS)]

        def reduce(count: int) -> None:
            for turn in range(count):
                bucket = buckets[turn % _BUCKETS]
                name = f"bucket.{turn % _BUCKETS}"
                session.wait(session.allreduce(bucket, SUM, name=name, output=bucket))

        reduce(20)
        said = 0
        for _ in range(_ROUNDS):
            said -= session.statistics().negotiation_bytes
            session.observers.progress = lambda progress: times[progress.step].append(progress.at)
            reduce(turns // _ROUNDS)
            session.observers.progress = None
            said += session.statistics().negotiation_bytes
            session.barrier()
            for turn in range(turns // _ROUNDS):
                plain.reduce(turn)
            session.barrier()
        told = said / (turns // _ROUNDS * _ROUNDS)
        pipe.send((told, (times[Step.SUBMITTED], times[Step.READY]), (plain.asked, plain.known)))
        session.barrier()


def _rank_waits_in_vain(rank: int, size: int, file: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    with open_session(rank, size, dist.FileStore(file)) as session:
        tensor = torch.ones(8 * MB)
        try:
            for turn in itertools.count():
                session.wait(session.allreduce(tensor, name="tensor", output=tensor))
                if turn == 5:  # memory that is touched for the first time takes its own time
                    pipe.send(os.getpid())
        except RankLostError:
            pipe.send(time.monotonic())


# ---------------------------------------------------------------- measuring


def _measure_case(session: Session, case: Case, turns: int) -> tuple[float, float, float]:
    count = case.size // 4
    private = [torch.zeros(count) for _ in range(case.count)]
    mine = private
    if case.is_resident:
        mine = [session.resident((count,), torch.float32).zero_() for _ in range(case.count)]
    target = [torch.zeros(count) for _ in range(case.count)]

    def ours() -> None:
        handles = [
            session.allreduce(tensor, SUM, name=f"tensor.{i}", output=tensor)
            for i, tensor in enumerate(mine)
        ]
        for handle in handles:
            session.wait(handle)

    def gloo() -> None:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in private]
        for work in works:
            work.wait()

    def copy() -> None:
        for source, sink in zip(private, target, strict=True):
            sink.copy_(source)

    times: dict[Callable[[], None], list[float]] = {ours: [], gloo: [], copy: []}
    for turn in range(turns + 2):
        for function, measured in times.items():
            session.barrier()
            if function is copy and session.rank:
                continue
            for _ in range(case.per_turn):
                begin = time.perf_counter()
                function()
                if turn >= 2:  # the first touch of memory is not what is asked for
                    measured.append(time.perf_counter() - begin)
    figures = [1e3 * statistics.median(measured or [0.0]) for measured in times.values()]
    return figures[0], figures[1], figures[2]


if __name__ == "__main__":
    main()
