"""The life of a world's process: join, then carry out the orders that come through a pipe.

Whatever an order's answer is, it goes back through the pipe; an exception as a `Failed` with its
traceback. When the harness is gone, the process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from benchmarks.cases import programs
from benchmarks.libraries import RAW, load, require_running
from benchmarks.result import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from benchmarks.cases.timing import Sample
    from benchmarks.libraries import Library
    from benchmarks.plan import Prepare

WARM_UP_SAMPLES = 3
LEAST_SAMPLES = 2


@dataclass(frozen=True)
class Seat:
    """Where a process belongs."""

    library: str
    name: str
    rank: int
    world_size: int
    meeting_place: str
    tcp: bool = False
    examples: bool = False
    waits: bool = False
    """Whether it says when it is there, and joins only when it is told to."""


@dataclass(frozen=True)
class Joined:
    """A member is in: its threads before and after, and how long joining took."""

    threads_before: int
    seconds: float


@dataclass(frozen=True)
class Failed:
    """What was ordered went wrong; the traceback."""

    account: str


class Order(Protocol):
    """Something that a process is told to do."""

    def carry_out(self, library: Library | None) -> Any: ...


@dataclass(frozen=True)
class Measure:
    """Time a case for one turn."""

    prepare: Prepare
    backward_options: Mapping[str, str]
    seconds: float

    def carry_out(self, library: Library | None) -> Samples:
        if library is not None:
            library = dataclasses.replace(library, backward_options=self.backward_options)
        with _entered(self.prepare(library)) as sample:
            return _take_samples(sample, self.seconds)


@dataclass(frozen=True)
class Do:
    """Call a function with the library."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def carry_out(self, library: Library | None) -> Any:
        return self.function(library, *self.arguments)


def _take_samples(sample: Sample, seconds: float) -> Samples:
    """For `seconds`, after a third as long for warming up: what was stopped has to find its feet
    again, caches, clocks and whatever a library learns about its peers."""
    start = time.perf_counter()
    samples = Samples(first=sample())
    warm_at, latest = start + seconds / 3, start + seconds
    for number in itertools.count(1):
        now = time.perf_counter()
        # What takes longer than a turn is warm after the first time.
        if now > latest or (now > warm_at and number >= WARM_UP_SAMPLES):
            break
        sample()
    end = time.perf_counter() + seconds
    while len(samples.seconds) < LEAST_SAMPLES or time.perf_counter() < end:
        samples.seconds.append(sample())
    return samples


@contextlib.contextmanager
def _entered(prepared: Any) -> Iterator[Sample]:
    """A case gives a sample, or a context manager of one."""
    if isinstance(prepared, contextlib.AbstractContextManager):
        with prepared as sample:
            yield sample
    else:
        yield prepared


def participate(seat: Seat, orders: Connection, log: str) -> None:
    """The process."""
    _write_errors_to(log)
    torch.set_num_threads(1)
    try:
        library = _join(seat, orders)
    except Exception:  # noqa: BLE001 - whatever it is, the harness shows it
        orders.send(Failed(traceback.format_exc()))
        return
    while True:
        try:
            order: Order = orders.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = order.carry_out(library)
        except Exception:  # noqa: BLE001 - a case may fail in any way; the harness shows which
            answer = Failed(traceback.format_exc())
        orders.send(answer)


def _join(seat: Seat, orders: Connection) -> Library | None:
    threads = count_threads()
    if seat.library == RAW:
        orders.send(Joined(threads, 0.0))
        return None
    library = load(seat.library)
    if seat.examples:
        programs.install(library)
    if seat.waits:
        orders.send("ready")
        orders.recv()
    start = time.perf_counter()
    library.join(seat.name, seat.rank, seat.world_size, seat.meeting_place, tcp=seat.tcp)
    seconds = time.perf_counter() - start
    require_running(seat.library)
    orders.send(Joined(threads, seconds))
    return library


def count_threads() -> int:
    """Those of this process, as the kernel sees them."""
    return len(os.listdir("/proc/self/task"))


def _write_errors_to(log: str) -> None:
    """What the libraries complain of goes to a file: the terminal shows the table."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 2)
    os.close(descriptor)
