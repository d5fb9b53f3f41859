"""The result as one table for people, and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.result import Figure, Row

MARKS = {None: "", True: " [green]✓[/]", False: " [bold red]✗[/]"}


def build_table(rows: list[Row], caption: str) -> Table:
    """Ours, the other one, ratio and target; a heading wherever the section changes."""
    table = Table(box=box.ROUNDED, border_style="dim", header_style="bold cyan", caption=caption)
    table.add_column("medians", no_wrap=True)
    for heading in ("Lockstitch", "PyTorch", "ratio", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    section = None
    for row in rows:
        if row.section != section:
            table.add_section()
            table.add_row(f"[bold]{row.section}")
            section = row.section
        table.add_row(
            f"  {row.name}",
            show(row.ours, row.unit),
            show(row.other, row.unit),
            "" if row.ratio is None else f"{row.ratio:.3g}",
            row.target + MARKS[row.is_met],
        )
    return table


def write_json(path: Path, rows: list[Row], machine: str) -> None:
    """All rows with their quartiles and numbers of samples; times in seconds."""
    report = {"machine": machine, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def describe_machine() -> str:
    """What the figures were taken on; the load is that before the benchmarks add their own."""
    return (
        f"{platform.system()} {platform.machine()} · {os.cpu_count()} CPUs · "
        f"load before {os.getloadavg()[0]:.1f} · Python {platform.python_version()} · "
        f"torch {torch.__version__}"
    )


def show(figure: Figure, unit: str) -> str:
    """A figure in the unit that people read it in."""
    if figure.error:
        return "[red]failed"
    if figure.value is None:
        return f"[dim]{figure.note}"
    if unit == "s":
        microseconds = 1e6 * figure.value
        if microseconds >= 10_000:
            return f"{microseconds / 1000:,.1f} ms"
        return f"{microseconds:,.1f} µs" if microseconds < 100 else f"{microseconds:,.0f} µs"
    if unit == "share":
        return f"{100 * figure.value:.2f} %"
    return f"{figure.value:,.0f} {unit}".strip()
