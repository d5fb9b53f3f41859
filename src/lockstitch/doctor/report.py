"""Shows findings to people: a line each, and below those that are wrong what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from lockstitch.doctor.findings import Finding

_MARKS: Final = {
    "good": ("ok", "green"),
    "note": ("note", "yellow"),
    "wrong": ("WRONG", "bold red"),
}


def show(findings: Iterable[Finding], console: Console) -> int:
    """Prints the findings; returns how many are wrong."""
    table = Table.grid(padding=(0, 2))
    count = 0
    topic = ""
    for finding in findings:
        mark, style = _MARKS[finding.state]
        count += finding.state == "wrong"
        says = Text(finding.says)
        if finding.remedy:
            says.append(f"\n→ {finding.remedy}", style="dim" if finding.state == "note" else "bold")
        table.add_row(
            Text("" if finding.topic == topic else finding.topic), Text(mark, style=style), says
        )
        topic = finding.topic
    console.print(table)
    if count:
        console.print(Text(f"\n{count} of these will make something fail.", style="bold red"))
    return count
