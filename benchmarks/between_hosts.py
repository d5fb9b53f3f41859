"""Allreduces between hosts, beside Gloo in the same processes.

    python -m benchmarks.between_hosts [--only "2 x 1"] [--seconds 4] [--unshaped] [--apart]

Hosts are network namespaces with wires of 1 Gb/s and 0.2 ms (`benchmarks.wires`), `hosts x ranks`
of them. The two libraries take turns of a fraction of a second; the figures are medians on rank 0,
in milliseconds. *Share* of the link, ours and Gloo's: what the bits would take that each host must
send at least, 2 (H-1)/H of the tensor, as a part of what it took; TCP over packets of 1,500 bytes
reaches .95. The job has a secret, so the ranks' messages are authenticated. All hosts have the
processors of this machine in common, and the kernel may leave ranks of two of them on one for long
times; with `--apart` each host has some for itself, as real ones do.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from benchmarks.collectives import processes
from benchmarks.wires import Hosts, Wire
from lockstitch.collectives import SUM, SessionOptions, open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives import Session

KB, MB = 1 << 10, 1 << 20
_TURN_SECONDS = 0.15
_LEAST_TURNS = 4


@dataclass(frozen=True)
class Case:
    """So many tensors of so many bytes at once."""

    name: str
    size: int
    count: int = 1


@dataclass(frozen=True)
class Place:
    """So many hosts with so many ranks each."""

    name: str
    hosts: int
    ranks: int
    wire: Wire | None


CASES = (
    Case("4 KB", 4 * KB),
    Case("16 KB", 16 * KB),
    Case("64 KB", 64 * KB),
    Case("1 MB", MB),
    Case("25 MB", 25 * MB),
    Case("16 x 4 KB at once", 4 * KB, 16),
    Case("16 x 64 KB at once", 64 * KB, 16),
)
SHAPED = (
    Place("2 x 1", 2, 1, Wire()),
    Place("2 x 2", 2, 2, Wire()),
    Place("3 x 1", 3, 1, Wire()),
    Place("2 x 1, 0.1 % lost", 2, 1, Wire(loss=1e-3, most_segments=4)),
)
UNSHAPED = (Place("2 x 1", 2, 1, None), Place("2 x 2", 2, 2, None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="places whose names contain this")
    parser.add_argument("--case", default="", help="cases whose names contain this")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case")
    parser.add_argument("--unshaped", action="store_true", help="as quick as the kernel can")
    parser.add_argument("--apart", action="store_true", help="hosts share no processors")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_arguments: sys.exit(1))  # takes the hosts along
    print(f"{'hosts x ranks':20}{'case':20}{'ours':>9}{'Gloo':>9}{'ours / Gloo':>13}{'share':>13}")
    for place in UNSHAPED if arguments.unshaped else SHAPED:
        if arguments.only in place.name:
            cases = [case for case in CASES if arguments.case in case.name]
            _measure(place, cases, arguments.seconds, arguments.apart)


def _measure(place: Place, cases: list[Case], seconds: float, is_apart: bool) -> None:
    secret = secrets.token_hex(32)
    with Hosts(place.hosts, place.wire) as hosts:
        size = place.hosts * place.ranks
        where = (hosts, place.ranks, secret)
        with processes(size, _rank_measures, where, (cases, seconds, is_apart)) as pipes:
            for case in cases:
                ours, gloo = pipes[0].recv()
                share = ""
                if place.wire is not None:
                    bits = 16 * (place.hosts - 1) / place.hosts * case.size * case.count
                    least = 1e3 * bits / place.wire.bits_per_second
                    share = f"{least / ours:6.2f} /{least / gloo:5.2f}"
                figures = f"{ours:9.2f}{gloo:9.2f}{ours / gloo:13.2f}{share:>13}"
                print(f"{place.name:20}{case.name:20}{figures}", flush=True)


def _rank_measures(
    rank: int,
    size: int,
    file: str,
    pipe: Any,
    where: tuple[Hosts, int, str],
    what: tuple[list[Case], float, bool],
) -> None:
    hosts, per_host, secret = where
    cases, seconds, is_apart = what
    host = rank // per_host
    hosts.enter(host)
    if is_apart:
        count = size // per_host
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[host % count :: count])
    os.environ["GLOO_SOCKET_IFNAME"] = "wire"
    os.environ["LOCKSTITCH_SECRET"] = secret
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(file + ".gloo"), rank=rank, world_size=size
    )
    options = SessionOptions(host=f"host {host}", address=hosts.address(host))
    with open_session(rank, size, dist.FileStore(file), options) as session:
        for case in cases:
            figures = _measure_case(session, case, seconds)
            if rank == 0:
                pipe.send(figures)
    dist.destroy_process_group()


def _measure_case(session: Session, case: Case, seconds: float) -> tuple[float, float]:
    tensors = [torch.zeros(case.size // 4) for _ in range(case.count)]

    def ours() -> None:
        handles = [
            session.allreduce(tensor, SUM, name=f"{case.name}.{number}", output=tensor)
            for number, tensor in enumerate(tensors)
        ]
        for handle in handles:
            session.wait(handle)

    def gloo() -> None:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    def repeat(function: Callable[[], None], count: int) -> list[float]:
        session.barrier()
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            function()
            times.append(time.perf_counter() - begin)
        return times

    found: dict[str, list[float]] = {"ours": [], "gloo": []}
    slowest = torch.tensor(max(statistics.median(repeat(each, 3)) for each in (ours, gloo)))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    per_turn = max(1, int(_TURN_SECONDS / float(slowest)))
    turns = max(_LEAST_TURNS, int(seconds / 2 / (per_turn * float(slowest))))
    for _ in range(turns):
        found["ours"] += repeat(ours, per_turn)
        found["gloo"] += repeat(gloo, per_turn)
    return 1e3 * statistics.median(found["ours"]), 1e3 * statistics.median(found["gloo"])


if __name__ == "__main__":
    main()
