"""All figures as JSON: for programs, and to draw and render them again later."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.result import Figure, Row
from benchmarks.sections import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Report:
    """One run: when, on what, how long, and its rows. Times in seconds."""

    machine: str
    date: str
    command: str
    seconds: float
    rows: list[Row]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        """What `write` wrote."""
        content = json.loads(path.read_text())
        rows = [_row(row) for row in content.pop("rows")]
        return cls(rows=rows, **content)

    @classmethod
    def join(cls, reports: Sequence[Report]) -> Report:
        """Several parts of one plan, taken one after the other, as one report; of a row that is in
        several, the last. Raises ValueError where they were not taken on the same thing."""
        first, *others = reports
        if any(_without_load(each.machine) != _without_load(first.machine) for each in others):
            machines = "\n".join(each.machine for each in reports)
            raise ValueError(f"these reports are not of one machine and commit:\n{machines}")
        rows: dict[tuple[str, str], Row] = {}
        for each in reports:
            rows |= {(row.section, row.name): row for row in each.rows}
        return cls(
            first.machine,
            first.date,
            _command_of([each.command for each in reports]),
            sum(each.seconds for each in reports),
            sorted(rows.values(), key=_place),
        )


def _place(row: Row) -> int:
    """Sections in the order of the plan, then whatever else there is."""
    titles = [section.title for section in SECTIONS]
    return titles.index(row.section) if row.section in titles else len(titles)


def _command_of(commands: Sequence[str]) -> str:
    whole = dict.fromkeys(command.partition(" --only ")[0] for command in commands)
    return commands[0] if len(commands) == 1 else " and ".join(whole) + ", in parts"


def _without_load(machine: str) -> str:
    return re.sub(r"load before [\d.]+", "", machine)


def _row(content: dict[str, Any]) -> Row:
    content |= {role: _figure(content[role]) for role in ("ours", "other", "limit")}
    return Row(**content)


def _figure(content: dict[str, Any]) -> Figure:
    ends = content.pop("quartiles")
    return Figure(quartiles=None if ends is None else tuple(ends), **content)
