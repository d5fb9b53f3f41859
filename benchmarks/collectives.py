"""Reductions between the processes of one host, beside Gloo in the same processes.

    python -m benchmarks.collectives [--ranks 2 4] [--quick] [--only resident]

Each rank is a process with one thread for arithmetic. The two libraries take turns, a few
operations each, so that what else happens on the machine hits both; the figures are medians over
all operations of a case, on rank 0, in milliseconds. `private` tensors are ordinary ones,
`resident` ones live where the other ranks reach them (`Session.resident`). `of memcpy`: our speed
as a share of that of one rank that copies as much while the others sleep.

*Negotiation* is what lies between the moment at which the last rank asks for a bucket and that at
which the last one knows that all have: so much longer does a bucket take than if each rank knew by
itself. Where ranks share processors the last one waits for a processor before it can look, with
large buckets also for those who are already at work on them.
A *killed rank* is timed until the last survivor has its error. Both come with every number of
ranks, unless `--only` names something else.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

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
                bytes_, median, late = negotiation(ranks, turns, size=size)
                print(
                    f"{f'{_NEGOTIATION}, {what}':22}{ranks:6}{bytes_:10.0f} bytes from each rank, "
                    f"{median:.0f} µs (one in ten: {late:.0f})",
                    flush=True,
                )
        if arguments.only in _KILL:
            print(f"{_KILL:22}{ranks:6}{_time_to_notice(ranks):10.1f} ms until the last raises")


# ---------------------------------------------------------------- processes


def _measure(ranks: int, cases: list[Case], is_quick: bool) -> Iterator[tuple[float, float, float]]:
    with processes(ranks, _rank_measures, cases, is_quick) as pipes:
        for _ in cases:
            yield pipes[0].recv()


def negotiation(
    ranks: int, turns: int, backend: BackendName = "auto", size: int = 4 * MB
) -> tuple[float, float, float]:
    """Of a bucket of `size` bytes in the steady state: bytes that each rank says, and the time that
    passes until all know of all, in microseconds: median and 90th percentile."""
    with processes(ranks, _rank_negotiates, (turns, size // 4), backend) as pipes:
        told = [pipe.recv() for pipe in pipes]
    asked, known = zip(*[(asked, known) for _, asked, known in told], strict=True)
    added = sorted(
        1e6 * (max(last) - max(first))
        for first, last in zip(zip(*asked, strict=True), zip(*known, strict=True), strict=True)
    )
    return told[0][0], statistics.median(added), added[len(added) * 9 // 10]


def _time_to_notice(ranks: int) -> float:
    """From the kill until the last survivor has its error, in milliseconds."""
    with processes(ranks, _rank_waits_in_vain) as pipes:
        pids = [pipe.recv() for pipe in pipes]
        begin = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        return 1e3 * (max(pipe.recv() for pipe in pipes[1:]) - begin)


class processes:  # noqa: N801 - reads as a function
    """Rank processes that run `function(rank, size, store, pipe, *arguments)`."""

    def __init__(self, ranks: int, function: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
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

    def __enter__(self) -> list:
        return [pipe for _, pipe in self._members]

    def __exit__(self, kind: object, *_error: object) -> None:
        for process, _ in self._members:
            process.join(10 if kind is None else 0)
            process.kill()
            process.join()
        self._folder.cleanup()


def _rank_measures(rank: int, size: int, file: str, pipe, cases, is_quick: bool) -> None:
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
    rank: int, size: int, file: str, pipe, plan: tuple[int, int], backend: BackendName
) -> None:
    """Buckets as an optimizer has them: resident, under names that are known."""
    turns, count = plan
    torch.set_num_threads(1)
    times: dict[Step, list[float]] = {Step.SUBMITTED: [], Step.READY: [], Step.DONE: []}
    options = SessionOptions(backend)
    with open_session(rank, size, dist.FileStore(file), options) as session:
        buckets = [session.resident((count,), torch.float32).zero_() for _ in range(4)]

        def reduce(count: int) -> None:
            for turn in range(count):
                bucket = buckets[turn % 4]
                name = f"bucket.{turn % 4}"
                session.wait(session.allreduce(bucket, SUM, name=name, output=bucket))

        reduce(20)
        said = session.statistics().negotiation_bytes
        session.observers.progress = lambda progress: times[progress.step].append(progress.at)
        reduce(turns)
        session.observers.progress = None
        said = session.statistics().negotiation_bytes - said
        pipe.send((said / turns, times[Step.SUBMITTED], times[Step.READY]))
        session.barrier()


def _rank_waits_in_vain(rank: int, size: int, file: str, pipe) -> None:
    with open_session(rank, size, dist.FileStore(file)) as session:
        session.barrier()
        pipe.send(os.getpid())
        tensor = torch.ones(8 * MB)
        try:
            while True:
                session.wait(session.allreduce(tensor, output=tensor))
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
    return tuple(1e3 * statistics.median(measured or [0.0]) for measured in times.values())


if __name__ == "__main__":
    main()
