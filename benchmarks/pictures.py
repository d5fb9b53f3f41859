"""The figures as pictures: bars of how much faster, and curves of cost against what grows.

SVG with its text as text: small, sharp, and the same bytes for the same figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from benchmarks.sections import SECTIONS
from benchmarks.table import show_value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

    from benchmarks.report import Report
    from benchmarks.result import Row

OURS, THEIRS, PLAIN = "#1b6ca8", "#d1783c", "#9aa5b1"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lockstitch",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 100,
}
_AGAINST_OURSELVES = {section.title for section in SECTIONS if section.other == "FAST"}


@dataclass(frozen=True)
class Curve:
    """A section of the report drawn against its abscissa."""

    section: str
    x_label: str
    y_label: str
    is_logarithmic: bool = True


COSTS = [
    *(Curve(section.title, section.x_label, "seconds") for section in SECTIONS if section.is_curve),
    Curve("growth: no-op rpc_sync", "workers", "seconds"),
]
GROWTH = [
    Curve("growth: start of a world", "processes", "seconds"),
    Curve("growth: shutdown of a world", "processes", "seconds"),
    Curve("growth: threads of a worker", "processes", "threads", is_logarithmic=False),
    Curve("growth: memory of a worker", "processes", "MB", is_logarithmic=False),
    Curve("counted: bytes of a call", "processes", "bytes", is_logarithmic=False),
    Curve("counted: bytes of a backward pass", "processes", "bytes", is_logarithmic=False),
    *(
        Curve(f"simulated: {what} of {which}", "simulated workers", what)
        for what, which in (
            ("requests", "a start to the store"),
            ("bytes", "a start from and to the store"),
            ("messages", "a shutdown"),
        )
    ),
    *(
        Curve(f"simulated: {title}", "simulated workers", y_label, is_logarithmic=False)
        for title, y_label in (
            ("messages of a backward pass", "messages"),
            ("steps of a start that wait for each other", "steps"),
            ("steps of a shutdown that wait for each other", "steps"),
        )
    ),
]


def draw_pictures(report: Report, folder: Path) -> list[Path]:
    """Draws what the report has figures for; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(_STYLE):
        for name, picture in (
            ("ratios", draw_ratios(report.rows)),
            ("costs", draw_curves(report.rows, COSTS)),
            ("growth", draw_curves(report.rows, GROWTH)),
        ):
            if picture is not None:
                path = folder / f"{name}.svg"
                picture.savefig(path, metadata={"Date": None}, bbox_inches="tight")
                plt.close(picture)
                written.append(path)
    return written


def advantage(row: Row, ratio: float) -> float:
    """How many times better, whether times are compared or rates."""
    return ratio if row.unit in ("/s", "GB/s") else 1 / ratio


def draw_ratios(rows: Sequence[Row]) -> Picture | None:
    """A bar for each case that was compared with the incumbent, and a mark at its target."""
    compared = [
        row
        for row in rows
        if row.ratio and row.x is None and row.section not in _AGAINST_OURSELVES and row.unit
    ]
    if not compared:
        return None
    picture, axes = plt.subplots(figsize=(8, 0.27 * len(compared) + 1))
    for place, row in enumerate(compared):
        assert row.ratio is not None
        times = advantage(row, row.ratio)
        axes.barh(place, times - 1, left=1, color=OURS if times >= 1 else THEIRS, height=0.7)
        mark = advantage(row, row.ratio_target) if row.ratio_target else 1
        if row.ratio_target:
            axes.plot([mark, mark], [place - 0.45, place + 0.45], color="black", linewidth=1.2)
        right = (max(times, mark, 1), place)
        axes.annotate(f"{times:.3g} ×", right, (4, -3), textcoords="offset points")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(compared)), [_label(row) for row in compared])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_title("times better than torch.distributed.rpc (black: the target)", loc="left")
    return picture


def _label(row: Row) -> str:
    """Some names are clear only below the title of their section."""
    needs_title = row.section in ("backward", "no-op to a busy worker")
    return f"{row.section}: {row.name}" if needs_title else row.name


def draw_curves(rows: Sequence[Row], curves: Sequence[Curve]) -> Picture | None:
    """Panels side by side, ours and the incumbent's in each; those without figures are left out."""
    panels = [(curve, found) for curve in curves if (found := _points(rows, curve.section))]
    if not panels:
        return None
    columns = min(3, len(panels)) if len(panels) != 4 else 2
    lines = -(-len(panels) // columns)
    picture, grid = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 2.7 * lines), squeeze=False, layout="constrained"
    )
    for axes, (curve, points) in zip(grid.flat, panels, strict=False):
        _draw_curve(axes, curve, points)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    return picture


def _points(rows: Sequence[Row], section: str) -> list[tuple[float, Row]]:
    return [(row.x, row) for row in rows if row.section == section and row.x is not None]


def _draw_curve(axes: Axes, curve: Curve, points: Sequence[tuple[float, Row]]) -> None:
    for role, label, colour in (("ours", "Lockstitch", OURS), ("other", "PyTorch", THEIRS)):
        figures = [(x, getattr(row, role)) for x, row in points]
        known = [(x, figure) for x, figure in figures if figure.value is not None]
        if not known:
            continue
        abscissas, values = [x for x, _ in known], [figure.value for _, figure in known]
        axes.plot(abscissas, values, marker="o", markersize=3.5, color=colour, label=label)
        spread = [figure.quartiles or (figure.value, figure.value) for _, figure in known]
        first, third = zip(*spread, strict=True)
        axes.fill_between(abscissas, first, third, color=colour, alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_xticks([x for x, _ in points], [_tick(x, curve) for x, _ in points])
    axes.minorticks_off()
    if curve.is_logarithmic:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 100 * low:  # powers of ten would be one or two
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    unit = points[0][1].unit
    if unit == "s":
        axes.yaxis.set_major_formatter(lambda value, _: show_value(value, "s"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(curve.section.partition(": ")[2] or curve.section, loc="left", fontsize=9)
    axes.set_xlabel(curve.x_label)
    if unit != "s":
        axes.set_ylabel(curve.y_label)
    axes.legend(frameon=False, fontsize=8)


def _tick(x: float, curve: Curve) -> str:
    if "bytes" not in curve.x_label:
        return f"{x:g}"
    for unit in ("", "K", "M"):
        if x < 1024:
            return f"{x:g}{unit}"
        x /= 1024
    return f"{x:g}G"
