"""Growth as rows: a curve for each thing that may grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.growth.counting import count_world
from benchmarks.growth.processes import Costs, measure_world
from benchmarks.growth.simulation import simulate
from benchmarks.libraries import CALLER, LOCKSTITCH, RAW, TORCH
from benchmarks.member import Do, Seat
from benchmarks.result import Figure, Row
from benchmarks.runner import is_chosen
from benchmarks.worlds import START_SECONDS, CaseError, Member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.growth.work import Counts
    from benchmarks.plan import Pace

PROCESSES = (2, 4, 8, 16, 32)
SIMULATED = (2, 8, 32, 128, 256, 512)
_GREATEST_INCUMBENT = 8
"""Beyond, its polling threads fill the two cores of a small machine."""


@dataclass(frozen=True)
class Quantity:
    """Something that is measured in worlds of several sizes: a field of what they give."""

    field: str
    title: str
    unit: str


OF_PROCESSES = [
    Quantity("start_seconds", "growth: start of a world", "s"),
    Quantity("stop_seconds", "growth: shutdown of a world", "s"),
    Quantity("call_seconds", "growth: no-op rpc_sync", "s"),
    Quantity("threads", "growth: threads of a worker", ""),
    Quantity("most_threads", "growth: threads of the one that called all", ""),
    Quantity("memory_mb", "growth: memory of a worker", "MB"),
    Quantity("most_sockets", "growth: sockets of the busiest worker", ""),
]
_COUNTED = [
    ("call_messages", "messages of a call", ""),
    ("call_bytes", "bytes of a call", "B"),
    ("backward_messages", "messages of a backward pass", ""),
    ("backward_bytes", "bytes of a backward pass", "B"),
    ("find_messages", "messages of finding all others", ""),
    ("start_requests", "requests of a start to the store", ""),
    ("start_bytes", "bytes of a start from and to the store", "B"),
    ("shutdown_messages", "messages of a shutdown", ""),
    ("shutdown_bytes", "bytes of a shutdown", "B"),
]
COUNTED = [Quantity(field, f"counted: {title}", unit) for field, title, unit in _COUNTED]
"""In the same worlds of processes, but not while times are taken."""
SIMULATION = [
    *(Quantity(field, f"simulated: {title}", unit) for field, title, unit in _COUNTED),
    Quantity("start_depth", "simulated: steps of a start that wait for each other", ""),
    Quantity("shutdown_depth", "simulated: steps of a shutdown that wait for each other", ""),
    Quantity("most_connections", "simulated: connections of the busiest worker", ""),
    Quantity("threads_per_worker", "simulated: threads of a worker", ""),
]


def growth_rows(pace: Pace, only: str, log: Path) -> Iterator[Row]:
    """All curves, or those that were asked for."""
    chosen = [quantity for quantity in OF_PROCESSES if is_chosen(only, quantity.title, "")]
    if chosen:
        yield from _process_rows(chosen, pace, log)
    chosen = [quantity for quantity in COUNTED if is_chosen(only, quantity.title, "")]
    if chosen:
        sizes = [size for size in PROCESSES if size <= pace.greatest_world]
        results = {size: _counts(size, pace.patience_seconds, log) for size in sizes}
        yield from _rows_of(chosen, results, "processes")
    chosen = [quantity for quantity in SIMULATION if is_chosen(only, quantity.title, "")]
    if chosen:
        sizes = [size for size in SIMULATED if size <= pace.greatest_simulation]
        results = {size: _simulated(size, log) for size in sizes}
        yield from _rows_of(chosen, results, "workers")


def _process_rows(quantities: list[Quantity], pace: Pace, log: Path) -> Iterator[Row]:
    sizes = [size for size in PROCESSES if size <= pace.greatest_world]
    results: dict[tuple[str, int], Costs | str] = {}
    for size in sizes:
        for library in (LOCKSTITCH, TORCH):
            if library == LOCKSTITCH or size <= _GREATEST_INCUMBENT:
                results[library, size] = _costs(library, size, pace.patience_seconds, log)
    for quantity in quantities:
        for size in sizes:
            ours = _figure(results[LOCKSTITCH, size], quantity)
            other = _figure(results.get((TORCH, size)), quantity)
            yield _row(quantity, size, f"{size} processes", ours, other)


def _costs(library: str, size: int, patience_seconds: float, log: Path) -> Costs | str:
    try:
        return measure_world(library, size, patience_seconds, log)
    except CaseError as error:
        return f"{size} processes of {library}: {error}"


def _counts(size: int, patience_seconds: float, log: Path) -> Counts | str:
    try:
        return count_world(size, patience_seconds, log)
    except CaseError as error:
        return f"{size} processes that count: {error}"


def _simulated(size: int, log: Path) -> Counts | str:
    member = Member(Seat(RAW, CALLER, 0, 1, ""), log)
    try:
        member.answer(START_SECONDS)
        counts: Counts = member.carry_out(Do(simulate, (size,)), START_SECONDS)
        return counts
    except CaseError as error:
        return f"{size} simulated workers: {error}"
    finally:
        member.kill()


def _rows_of(
    quantities: list[Quantity], results: dict[int, Counts | str], whose: str
) -> Iterator[Row]:
    """Of what only we were asked."""
    for quantity in quantities:
        for size, result in results.items():
            yield _row(quantity, size, f"{size} {whose}", _figure(result, quantity), Figure())


def _figure(result: Any, quantity: Quantity) -> Figure:
    if result is None:
        return Figure()
    if isinstance(result, str):
        return Figure(note="failed", error=result)
    return Figure(float(getattr(result, quantity.field)), samples=1)


def _row(quantity: Quantity, size: int, name: str, ours: Figure, other: Figure) -> Row:
    ratio = ours.value / other.value if ours.value is not None and other.value else None
    return Row(quantity.title, name, quantity.unit, ours, other, ratio=ratio, x=size)
