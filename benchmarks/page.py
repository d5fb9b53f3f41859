"""The page of the documentation: its figures are rendered, its words are written by hand.

What lies between the two marks is replaced by the tables of a report; pictures are drawn beside
the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.pictures import draw_pictures
from benchmarks.table import write_markdown

if TYPE_CHECKING:
    from benchmarks.report import Report

DOCS = Path(__file__).parents[1] / "docs" / "explanation"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def render_page(report: Report, folder: Path = DOCS) -> list[Path]:
    """Writes the page's figures and pictures; returns the files."""
    page = folder / "performance.md"
    page.write_text(with_figures(page.read_text(), report))
    return [page, *draw_pictures(report, folder / "performance")]


def with_figures(page: str, report: Report) -> str:
    """The page with the report's tables between its marks. Raises ValueError where they are not."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page needs the marks {BEGIN} and {END}")
    origin = f"`{report.command}`, {report.date}, {report.seconds:.0f} s, on {report.machine}.\n"
    return "\n".join([before + BEGIN, "", origin, write_markdown(report.rows), END]) + after
