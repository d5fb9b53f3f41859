"""Worlds: the processes of one library, told through pipes what to do, in turns.

A world is stopped (SIGSTOP) until its turn comes: the incumbent polls while it waits, and that must
not be charged to the other one. A world in which something hangs is killed, and a fresh one takes
its place when it is needed next. Processes are forked from a server that has imported everything,
so that a world starts in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.libraries import CALLER, RAW
from benchmarks.member import Failed, Joined, Order, Seat, participate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.plan import Setting

START_SECONDS = 120.0
_PRELOADED = [
    "benchmarks.sections",  # all cases: whoever imports one while it is timed would be slow
    "benchmarks.growth",
    "benchmarks.member",
    "lockstitch.rpc",
    "torch.distributed.rpc",
]
_FOR_PROGRAMS = ["lockstitch.optim", "torch.distributed.optim", "sklearn.datasets"]
_CONTEXT = multiprocessing.get_context("forkserver")


class CaseError(Exception):
    """A case could not be measured; the text is the traceback from the process where it ran."""


class World:
    """One library's processes."""

    def __init__(self, library: str, setting: Setting, log: Path) -> None:
        self.library = library
        self.setting = setting
        self._folder = tempfile.TemporaryDirectory(prefix="benchmarks-")
        names = (CALLER,) if library == RAW else setting.names
        place = f"file://{self._folder.name}/meeting"
        self.members = [
            Member(Seat(library, name, rank, len(names), place, setting.tcp, setting.examples), log)
            for rank, name in enumerate(names)
        ]
        self.joined: list[Joined] = []
        try:
            self.joined = [member.answer(START_SECONDS) for member in self.members]
        except CaseError as error:
            self.close()
            raise CaseError(f"no world of {library}: {error}") from error
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Within it, the world runs."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def carry_out(self, order: Order, patience_seconds: float) -> Any:
        """The caller's answer to an order. Raises CaseError."""
        with self.turn():
            return self.members[0].carry_out(order, patience_seconds)

    def idle(self, seconds: float) -> tuple[float, int]:
        """What a callee does while nobody calls: share of a core, and threads beyond those that
        its process had before it joined."""
        callee = self.members[1].pid
        with self.turn():
            pause(1.0)  # for what follows the last call: deletions, retiring threads
            before = cpu_seconds(callee)
            pause(seconds)
            share = (cpu_seconds(callee) - before) / seconds
            return share, threads_of(callee) - self.joined[1].threads_before

    def close(self) -> None:
        """Ends all processes, whatever they are at."""
        for member in self.members:
            member.kill()
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        for member in self.members:
            member.signal(number)


class Member:
    """A process of a world, and our end of the pipe to it."""

    def __init__(self, seat: Seat, log: Path) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=participate, args=(seat, theirs, str(log)), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def carry_out(self, order: Order, patience_seconds: float) -> Any:
        """The answer to an order. Raises CaseError."""
        with contextlib.suppress(ConnectionError):  # it has ended, as the answer will tell
            self.pipe.send(order)
        return self.answer(patience_seconds)

    def answer(self, patience_seconds: float) -> Any:
        """What it says next. Raises CaseError if that is a failure, or nothing."""
        try:
            if not self.pipe.poll(patience_seconds):
                raise CaseError(f"no answer within {patience_seconds:.1f} s")
            answer = self.pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise CaseError("the process ended") from error
        if isinstance(answer, Failed):
            raise CaseError(answer.account)
        return answer

    def signal(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self.pipe.close()


def all_do(members: Sequence[Member], orders: Sequence[Any], patience_seconds: float) -> list[Any]:
    """Tells each its order before it waits for any; their answers. Raises CaseError."""
    for member, order in zip(members, orders, strict=True):
        member.pipe.send(order)
    return [member.answer(patience_seconds) for member in members]


class Worlds:
    """The worlds of one run, each started when it is first needed; all end with the `with`.

    Those of another setting end when a new setting is asked for.
    """

    def __init__(self, log: Path, *, with_programs: bool = False) -> None:
        _CONTEXT.set_forkserver_preload(_PRELOADED + with_programs * _FOR_PROGRAMS)
        self._log = log
        self._worlds: dict[str, World] = {}

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def of(self, library: str, setting: Setting) -> World:
        """That library's world in that setting. Raises CaseError."""
        world = self._worlds.get(library)
        if world is not None and world.setting != setting and library != RAW:
            self.give_up(library)
            world = None
        if world is None:
            world = self._worlds[library] = World(library, setting, self._log)
        return world

    def give_up(self, library: str) -> None:
        """Ends that library's world; harmless when there is none."""
        world = self._worlds.pop(library, None)
        if world is not None:
            world.close()

    def close(self) -> None:
        """Ends all."""
        for library in list(self._worlds):
            self.give_up(library)


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    """Within, so many processes do nothing but use CPU."""
    processes = [_CONTEXT.Process(target=_hog, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()


def _hog() -> None:
    parent, end = os.getppid(), time.monotonic() + START_SECONDS
    while os.getppid() == parent and time.monotonic() < end:
        sum(range(100_000))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far, from /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])  # user, system
    return ticks / os.sysconf("SC_CLK_TCK")


def threads_of(pid: int) -> int:
    """How many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def pause(seconds: float) -> None:
    """Lets time pass: here it is what is measured."""
    threading.Event().wait(seconds)
