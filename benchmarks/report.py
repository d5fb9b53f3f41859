"""All figures as JSON: for programs, and to draw and render them again later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.result import Figure, Row

if TYPE_CHECKING:
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


def _row(content: dict[str, object]) -> Row:
    figures = {role: _figure(content.pop(role)) for role in ("ours", "other", "limit")}
    return Row(**figures, **content)


def _figure(content: dict[str, object]) -> Figure:
    ends = content.pop("quartiles")
    return Figure(quartiles=None if ends is None else tuple(ends), **content)
