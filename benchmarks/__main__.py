"""The command `python -m benchmarks`."""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import TYPE_CHECKING

os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the worlds, read when they import torch

from rich.console import Console

from benchmarks.growth import growth_rows
from benchmarks.machine import Machine
from benchmarks.options import Options, parse_options
from benchmarks.page import render_page
from benchmarks.pictures import draw_pictures
from benchmarks.report import Report
from benchmarks.runner import Runner, needs_programs
from benchmarks.sections import SECTIONS
from benchmarks.table import build_table
from benchmarks.worlds import CaseError, Worlds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.result import Row

_WIDTH_OF_FILES = 150


def measure(options: Options) -> Iterator[Row]:
    log = options.folder / "complaints.log"
    with Worlds(log, with_programs=needs_programs(options.only, SECTIONS)) as worlds:
        runner = Runner(worlds, options.pace, options.only)
        yield from runner.rows(SECTIONS)
        yield from runner.idle_rows()
    if not runner.is_late():
        yield from growth_rows(options.pace, options.only, log)


def run(options: Options, console: Console) -> Report:
    """Measures everything that was asked for."""
    machine, date = Machine.take(), datetime.datetime.now(tz=datetime.timezone.utc)
    start, rows = time.monotonic(), []
    options.folder.mkdir(parents=True, exist_ok=True)
    with console.status("starting …") as status:
        for row in measure(options):
            rows.append(row)
            status.update(f"{time.monotonic() - start:.0f} s · {row.section}: {row.name}")
    seconds = round(time.monotonic() - start, 1)
    return Report(str(machine), f"{date:%Y-%m-%d %H:%M} UTC", options.command, seconds, rows)


def show(report: Report, console: Console) -> None:
    """The table, and what went wrong."""
    caption = f"{report.machine}\n{report.command} · {report.date} · {report.seconds:.0f} s"
    console.print(build_table(report.rows, caption))
    for row in report.rows:
        for figure in (row.ours, row.other, row.limit):
            if figure.error:
                *_, last = figure.error.strip().splitlines()
                console.print(f"{row.name}: {last}", style="red", markup=False, highlight=False)


def main(arguments: list[str]) -> int:
    """Prints the table; 1 if we could not run a case, whatever the figures."""
    options, console = parse_options(arguments), Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_OF_FILES)
    if options.from_json:
        report = Report.join([Report.read(path) for path in options.from_json])
    else:
        try:
            report = run(options, console)
        except CaseError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            return 1
    report.write(options.json)
    show(report, console)
    pictures = draw_pictures(report, options.folder)
    written = [str(path) for path in [options.json, *pictures]]
    if options.docs:
        written += [str(path) for path in render_page(report)]
    console.print("written:", *written, style="dim", highlight=False)
    return 1 if any(row.ours.error for row in report.rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
