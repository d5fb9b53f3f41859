"""Views of the graph of an autograd context: text for Graphviz, and a picture in SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOURS: Final = {"": "#8a867c", "arrived": "#2563a8", "awaited": "#b3452c"}
_IN_WORDS: Final = {
    "": "not part of a backward pass",
    "arrived": "its gradient has arrived",
    "awaited": "its gradient is awaited",
}
_COLUMN: Final = 230
_ROW: Final = 46
_TOP: Final = 74
_SIDE: Final = 120
_MOST_TENSORS: Final = 3
_STYLE: Final = (
    "svg{font-family:system-ui,sans-serif;font-size:12px}.card{fill:#fbfaf7}"
    "text{fill:#2b2a27;text-anchor:middle}.worker{font-weight:600}.title,.key{text-anchor:start}"
    ".life{stroke:#cfcabc}.way{stroke:#cfcabc;stroke-width:5;stroke-linecap:round}"
    "path{fill:none;stroke-width:1.6}"
    "@media(prefers-color-scheme:dark){.card{fill:#1b1c1f}text{fill:#eceae5}"
    ".life,.way{stroke:#4a4d54}}"
)


@dataclass(frozen=True, slots=True)
class Stitch:
    """Tensors that went from one worker to another within a context. `name` names them in the whole
    job; `tensors` are their dtypes and shapes, and `made_of` the names of the stitches received by
    the sender from which they were computed. `state`: whether, in the latest backward pass, their
    gradient has "arrived" at the sender or is "awaited"; else empty."""

    name: str
    sender: str
    receiver: str
    tensors: tuple[str, ...]
    made_of: tuple[str, ...] = ()
    state: Literal["", "arrived", "awaited"] = ""


def as_dot(context_id: int, workers: Sequence[str], stitches: Sequence[Stitch]) -> str:
    """Returns the graph as text for Graphviz."""
    lines = [f'digraph "context {context_id}" {{', "  rankdir=LR; node [shape=box];"]
    for number, worker in enumerate(workers):
        lines.append(f"  subgraph cluster_{number} {{ label={_quoted(worker)};")
        for stitch in stitches:
            label = _quoted(f"{stitch.name}\n" + "\n".join(stitch.tensors))
            if stitch.sender == worker:
                lines.append(f"    {_quoted('sent ' + stitch.name)} [label={label}];")
            if stitch.receiver == worker:
                lines.append(f"    {_quoted('received ' + stitch.name)} [label={label}];")
        lines.append("  }")
    for stitch in stitches:
        sent, colour = _quoted("sent " + stitch.name), _COLOURS[stitch.state]
        looks = f"style=dashed color={_quoted(colour)} tooltip={_quoted(_IN_WORDS[stitch.state])}"
        lines.append(f"  {sent} -> {_quoted('received ' + stitch.name)} [{looks}];")
        lines += [f"  {_quoted('received ' + name)} -> {sent};" for name in stitch.made_of]
    return "\n".join([*lines, "}"]) + "\n"


def as_svg(context_id: int, workers: Sequence[str], stitches: Sequence[Stitch]) -> str:
    """Returns a picture: workers are columns, and stitches arrows between them, each below those
    that it is made of; a bar leads from one stitch through a worker to the next. Light or dark as
    the reader's system is."""
    columns = {worker: _SIDE + _COLUMN * place for place, worker in enumerate(workers)}
    rows = {each.name: _TOP + _ROW * (place + 1) for place, each in enumerate(stitches)}
    width = 2 * _SIDE + _COLUMN * max(1, len(columns) - 1)
    height = _TOP + _ROW * (len(rows) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}">',
        f"<title>context {context_id}</title><style>{_STYLE}</style>",
        _arrow_heads(),
        f'<rect class="card" width="{width}" height="{height}" rx="12"/>',
        f'<text class="title" x="16" y="26">Autograd context {context_id}</text>',
    ]
    for worker, x in columns.items():
        parts.append(f'<text class="worker" x="{x}" y="{_TOP - 14}">{escape(worker)}</text>')
        parts.append(f'<line class="life" x1="{x}" x2="{x}" y1="{_TOP}" y2="{height - _ROW}"/>')
    for stitch in stitches:
        x = columns[stitch.sender]
        parts += [
            f'<line class="way" x1="{x}" x2="{x}" y1="{rows[name]}" y2="{rows[stitch.name]}"/>'
            for name in stitch.made_of
            if name in rows
        ]
    for stitch in stitches:
        parts += _arrow(stitch, columns[stitch.sender], columns[stitch.receiver], rows[stitch.name])
    parts += _key(stitches, height)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _arrow(stitch: Stitch, begin: int, end: int, y: int) -> list[str]:
    colour = _COLOURS[stitch.state]
    if begin == end:  # to itself
        path, middle = f"M{begin} {y - 8}h34v16h-28", begin + 40
    else:
        path, middle = f"M{begin} {y}H{end - 6 if end > begin else end + 6}", (begin + end) // 2
    shown = ", ".join(stitch.tensors[:_MOST_TENSORS])
    rest = len(stitch.tensors) - _MOST_TENSORS
    words = f"{shown} and {rest} more" if rest > 0 else shown
    told = f"{stitch.name}: {', '.join(stitch.tensors)}; {_IN_WORDS[stitch.state]}"
    kind = stitch.state or "none"
    return [
        f'<path d="{path}" stroke="{colour}" marker-end="url(#{kind})"><title>{escape(told)}'
        "</title></path>",
        f'<text x="{middle}" y="{y - 11 if begin == end else y - 7}">{escape(words)}</text>',
    ]


def _arrow_heads() -> str:
    heads = "".join(
        f'<marker id="{state or "none"}" viewBox="0 0 8 8" refX="2" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:{colour}"/></marker>'
        for state, colour in _COLOURS.items()
    )
    return f"<defs>{heads}</defs>"


def _key(stitches: Sequence[Stitch], height: int) -> list[str]:
    """What the colours say, as far as they occur."""
    parts, x = [], 16
    for state in dict.fromkeys(each.state for each in stitches):
        parts.append(f'<path d="M{x} {height - 18}h22" stroke="{_COLOURS[state]}"/>')
        parts.append(f'<text class="key" x="{x + 28}" y="{height - 14}">{_IN_WORDS[state]}</text>')
        x += 52 + 7 * len(_IN_WORDS[state])
    return parts


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
