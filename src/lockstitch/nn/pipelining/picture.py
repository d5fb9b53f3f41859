"""A schedule as a picture: a line for each worker, a box for each action, idle time left empty.

SVG with its text as text, which browsers, notebooks and documents show; light or dark as the
reader's system is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.nn.pipelining.schedules import TICKS, Work
from lockstitch.nn.pipelining.simulation import Span, bubble, simulate, theoretical_bubble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.nn.pipelining.schedules import Action, Schedule
    from lockstitch.nn.pipelining.steps import StepRecord

_WIDTH: Final = 960
_LEFT: Final = 110
_LINE: Final = 30
_SPACE: Final = 34
_LEAST_WIDTH_OF_TEXT: Final = 13
_NAMES: Final[dict[Work, str]] = {
    "F": "forward",
    "B": "backward",
    "I": "backward, inputs",
    "W": "backward, parameters",
}
_STYLE: Final = (
    "svg{font-family:system-ui,sans-serif;font-size:11px}"
    ".card{fill:#fbfaf7}.line{fill:#efece4}text{fill:#2b2a27}.in{fill:#fff;text-anchor:middle}"
    ".F{fill:#2563a8}.B{fill:#b3452c}.I{fill:#b3452c}.W{fill:#7a6a1f}"
    "rect{stroke-width:0}.F,.B,.I,.W{stroke:#fbfaf7;stroke-width:1}"
    "@media(prefers-color-scheme:dark){.card{fill:#1b1c1f}.line{fill:#2a2c31}text{fill:#eceae5}"
    ".F,.B,.I,.W{stroke:#1b1c1f}}"
)


def draw(schedule: Schedule, workers: Sequence[str], record: StepRecord | None) -> str:
    """The plan of a schedule, and a step as it was measured if `record` is given."""
    drawing = _Drawing(workers, record is not None)
    seconds = None if record is None else _mean_seconds(record)
    plan = simulate(
        schedule,
        lambda action: float(TICKS[action.work]) if seconds is None else seconds[_kind(action)],
    )
    title = f"{schedule.name}, planned: bubble {bubble(plan):.1%}"
    drawing.panel(f"{title}, in theory {theoretical_bubble(schedule):.1%}", plan)
    if record is not None:
        drawing.panel(f"measured: bubble {record.bubble:.1%}", record.spans)
    return drawing.finish(schedule)


def _kind(action: Action) -> tuple[Work, int]:
    return action.work, action.stage


def _mean_seconds(record: StepRecord) -> dict[tuple[Work, int], float]:
    """How long each kind of action took in each stage, on the average."""
    lengths: dict[tuple[Work, int], list[float]] = {}
    for span in (span for row in record.spans for span in row):
        lengths.setdefault(_kind(span.action), []).append(span.end - span.begin)
    return {kind: sum(each) / len(each) for kind, each in lengths.items()}


class _Drawing:
    """What is drawn so far."""

    def __init__(self, workers: Sequence[str], is_double: bool) -> None:
        self._workers = workers
        self._parts: list[str] = []
        self._bottom = 0
        panels = 2 if is_double else 1
        self._height = panels * (_SPACE + _LINE * len(workers)) + _SPACE

    def panel(self, title: str, spans: Sequence[Sequence[Span]]) -> None:
        """A line for each worker, from the first beginning to the last end."""
        every = [span for row in spans for span in row]
        first = min((span.begin for span in every), default=0.0)
        total = max((span.end for span in every), default=1.0) - first
        scale = (_WIDTH - _LEFT - 20) / (total or 1.0)
        self._text(_LEFT, self._bottom + 22, title)
        top = self._bottom + _SPACE
        for worker, row in zip(self._workers, spans, strict=True):
            self._text(16, top + 18, worker)
            self._box("line", _LEFT, top + 2, _WIDTH - _LEFT - 20, "")
            for action, begin, end in row:
                self._action(
                    action, _LEFT + (begin - first) * scale, top + 2, (end - begin) * scale
                )
            top += _LINE
        self._bottom = top

    def _action(self, action: Action, x: float, y: float, width: float) -> None:
        told = f"{_NAMES[action.work]}, micro-batch {action.micro_batch}, stage {action.stage}"
        self._box(action.work, x, y, width, f"<title>{told}</title>")
        if width >= _LEAST_WIDTH_OF_TEXT:
            self._parts.append(
                f'<text class="in" x="{x + width / 2:.1f}" y="{y + 17:.1f}">'
                f"{action.micro_batch}</text>"
            )

    def _box(self, kind: str, x: float, y: float, width: float, inner: str) -> None:
        self._parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{_LINE - 4}">{inner}</rect>'
        )

    def _text(self, x: float, y: float, words: str) -> None:
        escaped = words.replace("&", "&amp;").replace("<", "&lt;")
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}">{escaped}</text>')

    def finish(self, schedule: Schedule) -> str:
        """The picture, with a legend."""
        x, y = float(_LEFT), self._bottom + 8
        for work in dict.fromkeys(action.work for row in schedule.rows for action in row):
            self._parts.append(f'<rect class="{work}" x="{x}" y="{y}" width="12" height="12"/>')
            self._text(x + 18, y + 10, _NAMES[work])
            x += 40 + 6.5 * len(_NAMES[work])
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {self._height}" '
            f'role="img">\n<style>{_STYLE}</style>\n'
            f'<rect class="card" width="{_WIDTH}" height="{self._height}" rx="12"/>\n'
            f"{body}\n</svg>\n"
        )
