"""What it costs to be looked at: a call of a function that does nothing, and a reduction of 4 KB,
while nobody looks, while calls are counted, and while spans are recorded.

    python -m benchmarks.observing [--before TREE] [--rounds N] [--only call] [--quickest]

All settings take turns in the same two processes. With `--before`, the sources of an earlier commit
(a `git worktree`, say) take turns with them, in two processes of their own: beside them stands what
it costs that it can be switched on at all. The figures are medians over the rounds of the time of
one call, in the median of each round; the ratios are those of medians. On a machine that has other
work, `--quickest` takes the quickest fifty calls of each round instead.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
OFF, COUNTED, RECORDED, BEFORE = "off", "counted", "recorded", "before"
WORK = {"call": "no-op call", "reduction": "reduction of 4 KB"}
_QUICKEST = "BENCHMARK_QUICKEST"
_BATCH = 50
_TURN_SECONDS = 0.4


class Member:
    """One of the two processes. The first works as its standard input says, and prints how many
    microseconds it took."""

    def __init__(self, rank: int) -> None:
        import torch  # noqa: PLC0415 - the parent needs none

        from lockstitch import hvd, rpc  # noqa: PLC0415

        torch.set_num_threads(1)
        self._hvd, self._rpc = hvd, rpc
        self._content = torch.ones(1024)
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        hvd.init()
        if rank == 0:
            print("ready", flush=True)
            for line in sys.stdin:
                work, setting = line.split()
                print(self.measure(work, setting), flush=True)
        rpc.shutdown()

    def measure(self, work: str, setting: str) -> float:
        call = self._rpc.rpc_sync
        with contextlib.ExitStack() as stack:
            if setting in (COUNTED, RECORDED):
                stack.enter_context(observed(setting))
                call("worker1", begin_to_observe, (setting,))
                stack.callback(call, "worker1", end_observing)
            if work == "call":
                return measured(lambda: call("worker1", nothing))
            rounds = int(_TURN_SECONDS / 50e-6 / _BATCH) * _BATCH
            other = self._rpc.rpc_async("worker1", reduce, (rounds,))
            found = self._reduce(rounds)
            other.wait()
            return found

    def _reduce(self, rounds: int) -> float:
        return reduce(rounds, self._hvd, self._content)


def reduce(rounds: int, hvd: object = None, content: object = None) -> float:
    """Reduces so many times; called on both ranks."""
    if hvd is None:
        import torch  # noqa: PLC0415

        from lockstitch import hvd  # noqa: PLC0415

        content = torch.ones(1024)
    times = []
    for _ in range(rounds // _BATCH):
        begun = time.perf_counter()
        for _ in range(_BATCH):
            hvd.allreduce_(content, op=hvd.Max, name="content")  # type: ignore[attr-defined]
        times.append((time.perf_counter() - begun) / _BATCH)
    return of_batches(times)


def nothing() -> None:
    """What is called."""


def measured(work: object) -> float:
    times, ends_at = [], time.perf_counter() + _TURN_SECONDS
    while time.perf_counter() < ends_at:
        begun = time.perf_counter()
        for _ in range(_BATCH):
            work()  # type: ignore[operator]
        times.append((time.perf_counter() - begun) / _BATCH)
    return of_batches(times)


def of_batches(times: list[float]) -> float:
    """The figure of a round, in microseconds."""
    choose = min if os.environ.get(_QUICKEST) else statistics.median
    return choose(times) * 1e6


@contextlib.contextmanager
def observed(setting: str) -> Iterator[None]:
    from lockstitch.attach.recorder import RECORDER  # noqa: PLC0415 - earlier commits have none

    if setting == COUNTED:
        RECORDER.count()
        yield
        RECORDER.stop_counting()
    else:
        with RECORDER.recording():
            yield


_OPEN = contextlib.ExitStack()


def begin_to_observe(setting: str) -> None:
    _OPEN.enter_context(observed(setting))


def end_observing() -> None:
    _OPEN.close()


class World:
    """Two processes that run the sources of a tree."""

    def __init__(self, tree: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        paths = f"{tree / 'src'}{os.pathsep}{ROOT}"
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.observing", "--member"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **meeting, "PYTHONPATH": paths, "RANK": str(rank)},
            )
            for rank in range(2)
        ]
        self._ask = self._processes[0]
        self._answer()

    def measure(self, work: str, setting: str) -> float:
        assert self._ask.stdin is not None
        print(work, setting, file=self._ask.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._ask.stdout is not None
        line = self._ask.stdout.readline()
        if not line:
            raise RuntimeError("a process of the benchmark has ended; see above")
        return line

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()


def table(figures: dict[tuple[str, str], list[float]], base: str) -> list[str]:
    """Lines with the medians, and their ratios to those of `base`."""
    lines = [f"{'':20}{'setting':>10}{'µs':>9}{'ratio':>8}   to {base}"]
    for work in dict.fromkeys(work for work, _ in figures):
        reference = statistics.median(figures[work, base])
        for (which, setting), times in figures.items():
            if which == work:
                median = statistics.median(times)
                ratio = f"{median / reference:8.3f}"
                lines.append(f"{WORK[work]:20}{setting:>10}{median:9.2f}{ratio}")
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What it costs to be looked at.")
    parser.add_argument("--before", type=Path, help="sources of an earlier commit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["call", "reduction"], help="one kind of work")
    parser.add_argument("--quickest", action="store_true", help="of each round, not the median")
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.member:
        Member(int(os.environ["RANK"]))
        return
    if options.quickest:
        os.environ[_QUICKEST] = "1"  # inherited by the processes
    works = [options.only] if options.only else list(WORK)
    with contextlib.ExitStack() as stack:
        ours = World(ROOT)
        stack.callback(ours.close)
        turns = [(ours, OFF), (ours, COUNTED), (ours, RECORDED)]
        if options.before:
            earlier = World(options.before)
            stack.callback(earlier.close)
            turns.insert(0, (earlier, BEFORE))
        figures: dict[tuple[str, str], list[float]] = {}
        for number in range(options.rounds + 1):
            for work in works:
                for world, setting in turns:
                    found = world.measure(work, setting)
                    if number:  # the first round warms up
                        figures.setdefault((work, setting), []).append(found)
    print("\n".join(table(figures, BEFORE if options.before else OFF)))


if __name__ == "__main__":
    main()
