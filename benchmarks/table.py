"""The result as one table: for the terminal, and in Markdown for the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.result import Figure, Row

HEADINGS = ("Lockstitch", "PyTorch", "ratio", "limit", "distance", "target", "")
MARKS = {None: "", True: "✓", False: "✗"}
_COLOURS = {"": "", "✓": "[green]✓[/]", "✗": "[bold red]✗[/]"}


def build_table(rows: Sequence[Row], caption: str) -> Table:
    """A heading wherever the section changes."""
    table = Table(box=box.ROUNDED, border_style="dim", header_style="bold cyan", caption=caption)
    table.add_column("medians", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=heading != "target")
    section = None
    for row in rows:
        if row.section != section:
            table.add_section()
            table.add_row(f"[bold]{row.section}")
            section = row.section
        *cells, mark = cells_of(row)
        table.add_row(f"  {row.name}", *cells, _COLOURS[mark])
    return table


def write_markdown(rows: Sequence[Row]) -> str:
    """The same as tables of Markdown, one for each section."""
    lines: list[str] = []
    section = None
    for row in rows:
        if row.section != section:
            lines += ["", f"**{row.section}**", ""]
            lines.append("| case | " + " | ".join(HEADINGS) + " |")
            lines.append("|---" + "|--:" * len(HEADINGS) + "|")
            section = row.section
        cells = [cell.replace("|", "\\|") for cell in cells_of(row)]
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines).strip() + "\n"


def cells_of(row: Row) -> list[str]:
    """The row after its name, as text."""
    tells_p99 = "p99" in row.target
    return [
        show(row.ours, row.unit, tells_p99=tells_p99),
        show(row.other, row.unit, tells_p99=tells_p99),
        _number(row.ratio),
        show(row.limit, row.unit, tells_p99=tells_p99),
        _number(row.distance, "×"),
        row.target,
        MARKS[row.is_met],
    ]


def show(figure: Figure, unit: str, *, tells_p99: bool = False) -> str:
    """A figure in the unit that people read it in; in brackets the first one of large tensors, and
    the 99th percentile where one is promised."""
    if figure.value is None:
        return figure.note
    text = show_value(figure.value, unit)
    if unit == "GB/s" and figure.first is not None:
        text += f" ({figure.first:.2g})"
    elif tells_p99 and figure.p99 is not None:
        text += f" ({show_value(figure.p99, unit)})"
    return text


def show_value(value: float, unit: str) -> str:
    """A single number with its unit."""
    if unit == "s":
        return show_seconds(value)
    if unit == "share":
        return f"{100 * value:.2f} %"
    if unit in ("GB/s", "MB"):
        return f"{value:,.{1 if value >= 10 else 2}f} {unit}"
    if unit == "" and value != int(value):
        return f"{value:.1f}"
    return f"{value:,.0f} {unit}".strip()


def show_seconds(seconds: float) -> str:
    """Three digits that matter."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms"), (1.0, "s")):
        number = factor * seconds
        if number < 1000 or unit == "s":
            digits = 2 if number < 10 else 1 if number < 100 else 0
            return f"{number:.{digits}f} {unit}"
    raise AssertionError("seconds are always shown")


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return ""
    digits = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    return f"{digits} {sign}".strip()
