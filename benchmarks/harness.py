"""Worlds of two processes, told through pipes what to measure, and measured in turns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.libraries import Library, load, require_running
from benchmarks.result import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from benchmarks.cases.timing import Sample
    from benchmarks.plan import Comparison

START_SECONDS = 120.0
ANSWER_SECONDS = 60.0
WARM_UP_SAMPLES = 3
LEAST_SAMPLES = 2
_SPAWN = multiprocessing.get_context("spawn")


class CaseError(Exception):
    """A case could not be measured; the text is the traceback from the process where it ran."""


@dataclass(frozen=True)
class Order:
    """What a caller is to do in one turn."""

    prepare: Callable[[Library], Sample]
    backward_options: Mapping[str, str]
    seconds: float


class World:
    """One library's caller and callee. Stopped until its turn comes."""

    def __init__(self, library: str) -> None:
        self.library = library
        self._folder = tempfile.TemporaryDirectory(prefix="benchmarks-")
        meeting_place = f"file://{self._folder.name}/meeting"
        self._members = [_Member(library, rank, meeting_place) for rank in range(2)]
        for member in self._members:
            if isinstance(failure := member.answer(START_SECONDS), str):
                self.close()
                raise SystemExit(f"no world of {library}: {failure}")
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Within it, the world runs."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def measure(self, order: Order) -> list[float]:
        """One turn: seconds per operation, of each sample. Raises CaseError."""
        caller = self._members[0]
        with self.turn():
            caller.pipe.send(order)
            answer = caller.answer(ANSWER_SECONDS)
        if isinstance(answer, str):
            raise CaseError(answer)
        return answer

    def idle(self, seconds: float) -> tuple[float, int]:
        """What the callee does while nobody calls: share of a core, and number of threads."""
        callee = self._members[1].process.pid
        assert callee is not None
        with self.turn():
            pause(1.0)  # for what follows the last call: deletions, retiring threads
            before = cpu_seconds(callee)
            pause(seconds)
            share = (cpu_seconds(callee) - before) / seconds
            return share, len(os.listdir(f"/proc/{callee}/task"))

    def close(self) -> None:
        """Ends both processes, whatever they are at."""
        for member in self._members:
            member.process.kill()
            member.process.join()
            member.pipe.close()
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        for member in self._members:
            if member.process.is_alive() and member.process.pid is not None:
                os.kill(member.process.pid, number)


class Worlds:
    """The worlds of one run, each started when it is first needed; all end with the `with`."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *exception: object) -> None:
        for library in list(self._worlds):
            self._worlds.pop(library).close()

    def of(self, library: str) -> World:
        if library not in self._worlds:
            self._worlds[library] = World(library)
        return self._worlds[library]

    def compare(self, comparison: Comparison, rounds: int, seconds: float) -> list[Samples]:
        """Measures all contenders in turns; who fails is left out of the further rounds."""
        results = [(contender, Samples()) for contender in comparison.contenders]
        for _ in range(rounds):
            for contender, samples in results:
                if not samples.error:
                    order = Order(comparison.prepare, contender.backward_options, seconds)
                    try:
                        samples.seconds += self.of(contender.library).measure(order)
                    except CaseError as error:
                        samples.error = f"{comparison.name}, {contender.library}: {error}"
                        self._worlds.pop(contender.library).close()  # it may be stuck for ever
        return [samples for _, samples in results]


class _Member:
    """A process of a world, and our end of the pipe to it."""

    def __init__(self, library: str, rank: int, meeting_place: str) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        arguments = (library, rank, meeting_place, theirs)
        self.process = _SPAWN.Process(target=participate, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def answer(self, timeout_seconds: float) -> list[float] | str:
        """What it says next; an account of its silence if it says nothing."""
        try:
            if not self.pipe.poll(timeout_seconds):
                return f"no answer within {timeout_seconds:.0f} s"
            answer: list[float] | str = self.pipe.recv()
        except EOFError:
            return "the process ended"
        return answer


def participate(library_name: str, rank: int, meeting_place: str, orders: Connection) -> None:
    """The life of a world's process: join, then obey the orders that come through the pipe."""
    torch.set_num_threads(1)
    library = load(library_name)
    library.join(rank, meeting_place)
    require_running(library_name)
    orders.send([])
    while True:
        try:
            order: Order = orders.recv()
        except EOFError:  # the harness is gone
            os._exit(0)
        try:
            orders.send(_obey(order, library))
        except Exception:  # noqa: BLE001 - a case may fail in any way; the harness shows which
            orders.send(traceback.format_exc())


def _obey(order: Order, library: Library) -> list[float]:
    sample = order.prepare(Library(library.rpc, library.dist_autograd, order.backward_options))
    for _ in range(WARM_UP_SAMPLES):
        sample()
    samples: list[float] = []
    end = time.perf_counter() + order.seconds
    while len(samples) < LEAST_SAMPLES or time.perf_counter() < end:
        samples.append(sample())
    return samples


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far, from /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])  # user, system
    return ticks / os.sysconf("SC_CLK_TCK")


def pause(seconds: float) -> None:
    """Lets time pass: here it is what is measured."""
    threading.Event().wait(seconds)
