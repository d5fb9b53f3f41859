"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the worlds, read when they import torch

from rich.console import Console

from benchmarks.cases.limits import ping_pong
from benchmarks.harness import Worlds
from benchmarks.libraries import LOCKSTITCH, TORCH
from benchmarks.plan import IDLE_SHARE_AT_MOST, SECTIONS
from benchmarks.result import Figure, Row, compare
from benchmarks.table import build_table, describe_machine, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Lockstitch against torch.distributed.rpc, in turns, in one run.",
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; figures are rough")
    parser.add_argument("--only", metavar="NAME", default="", help="rows whose name contains NAME")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures here too")
    return parser.parse_args()


def comparison_rows(worlds: Worlds, only: str, rounds: int, seconds: float) -> Iterator[Row]:
    """Calls and backward passes."""
    for section in SECTIONS:
        for comparison in section.comparisons:
            if only in comparison.name:
                ours, *other = worlds.compare(comparison, rounds, seconds)
                yield compare(section.title, comparison, ours, other[0] if other else None)


def rest_rows(worlds: Worlds, only: str, seconds: float) -> Iterator[Row]:
    """What a worker costs while nobody calls it."""
    if only not in "CPU of an idle worker":
        return
    (our_share, our_threads), (their_share, their_threads) = (
        worlds.of(library).idle(seconds) for library in (LOCKSTITCH, TORCH)
    )
    yield Row(
        "at rest",
        "CPU of an idle worker",
        "share",
        ours=Figure(our_share),
        other=Figure(their_share),
        target=f"≤ {100 * IDLE_SHARE_AT_MOST:g} %",
        is_met=our_share <= IDLE_SHARE_AT_MOST,
    )
    yield Row(
        "at rest",
        "threads of an idle worker",
        "",
        ours=Figure(our_threads),
        other=Figure(their_threads),
    )


def limit_rows(only: str, repeats: int) -> Iterator[Row]:
    """What the same message costs without any library."""
    for name, spin in (
        ("unix socket, there and back", False),
        ("the same, spinning first", True),
    ):
        if only in name:
            with ping_pong(spin=spin) as sample:
                median = statistics.median(sample() for _ in range(repeats))
            yield Row("limits of this machine", name, "s", ours=Figure(median))


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    rounds, turn_seconds, idle_seconds, repeats = (
        (3, 0.05, 2.0, 1_000) if arguments.quick else (15, 0.2, 10.0, 20_000)
    )
    with Worlds() as worlds:
        yield from comparison_rows(worlds, arguments.only, rounds, turn_seconds)
        yield from rest_rows(worlds, arguments.only, idle_seconds)
        yield from limit_rows(arguments.only, repeats)


def main() -> int:
    """Prints the table; 1 if a case could not be run, whatever the figures."""
    arguments, console, machine = parse_arguments(), Console(), describe_machine()
    rows = []
    with console.status("starting two worlds …") as status:
        for row in measure(arguments):
            rows.append(row)
            status.update(f"{row.section}: {row.name} …")
    console.print(build_table(rows, machine))
    if arguments.json:
        write_json(arguments.json, rows, machine)
    failed = [figure for row in rows for figure in (row.ours, row.other) if figure.error]
    for figure in failed:
        console.print(figure.error, style="red", markup=False, highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
