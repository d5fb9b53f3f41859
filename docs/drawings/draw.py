"""Draws the pictures of the documentation; `python docs/drawings/draw.py` writes them here.

Each picture is a list of boxes, arrows and words on a card of its own, which is light or dark as
the reader's system is. A test sees to it that the files are what this program draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

from lockstitch.nn.pipelining.picture import draw as draw_schedule
from lockstitch.nn.pipelining.schedules import ScheduleName, make_schedule
from lockstitch.observe.context_graph import ContextGraph
from lockstitch.observe.context_pictures import Stitch

HERE = Path(__file__).parent
STYLE = """
.card{fill:#fbfaf7;stroke:#e2ddd2}
.place{fill:#f1eee7;stroke:#d8d2c4}
.box{fill:#fff;stroke:#8b8577}
.text{fill:#2b2a27}
.faint{fill:#6c675c}
.one{stroke:#2563a8;fill:none}
.two{stroke:#b3452c;fill:none}
.thin{stroke:#8b8577;fill:none}
.one-text{fill:#2563a8}
.two-text{fill:#b3452c}
.one-tip{fill:#2563a8}
.two-tip{fill:#b3452c}
.thin-tip{fill:#8b8577}
@media(prefers-color-scheme:dark){
.card{fill:#1b1c1f;stroke:#34363b}
.place{fill:#24262a;stroke:#3b3e45}
.box{fill:#2e3137;stroke:#8f95a1}
.text{fill:#eceae5}
.faint{fill:#a9abb0}
.one{stroke:#7db4ee}
.two{stroke:#f0937b}
.thin{stroke:#8f95a1}
.one-text,.one-tip{fill:#7db4ee}
.two-text,.two-tip{fill:#f0937b}
.thin-tip{fill:#8f95a1}
}
""".strip().replace("\n", "")
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"


class Picture:
    """What is drawn so far, and what it tells those who cannot see it."""

    def __init__(self, width: int, height: int, told: str) -> None:
        self.told = told
        self.width, self.height = width, height
        self.parts: list[str] = []

    def place(self, x: int, y: int, width: int, height: int, name: str) -> None:
        """A worker, a rank: something with a name that other things are in."""
        self._rectangle("place", x, y, width, height, 12)
        self.words(x + 14, y + 23, name, bold=True, anchor="start")

    def box(self, x: int, y: int, width: int, height: int, name: str, more: str = "") -> None:
        self._rectangle("box", x, y, width, height, 7)
        middle = x + width // 2
        if more:
            self.words(middle, y + height // 2 - 4, name)
            self.words(middle, y + height // 2 + 13, more, "faint", size=11)
        else:
            self.words(middle, y + height // 2 + 5, name)

    def words(  # noqa: PLR0913 - where, what, and how it looks
        self,
        x: int,
        y: int,
        words: str,
        colour: str = "text",
        *,
        size: int = 13,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text class="{colour}" x="{x}" y="{y}" font-size="{size}" '
            f'text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def arrow(self, path: str, kind: str = "thin", *, dashed: bool = False) -> None:
        width = 1.5 if kind == "thin" else 2.5
        dashes = ' stroke-dasharray="6 5"' if dashed else ""
        self.parts.append(
            f'<path class="{kind}" d="{path}" stroke-width="{width}" stroke-linecap="round"'
            f'{dashes} marker-end="url(#{kind})"/>'
        )

    def line(self, path: str) -> None:
        self.parts.append(f'<path class="thin" d="{path}" stroke-dasharray="2 4"/>')

    def _rectangle(self, kind: str, x: int, y: int, width: int, height: int, round_: int) -> None:
        self.parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" '
            f'rx="{round_}"/>'
        )

    def svg(self) -> str:
        tips = "".join(
            f'<marker id="{kind}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="{size}" '
            f'markerHeight="{size}" orient="auto">'
            f'<path class="{kind}-tip" d="M0 1L9 5L0 9z"/></marker>'
            for kind, size in (("one", 4.5), ("two", 4.5), ("thin", 7))
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="{FONT}" role="img">',
            f"<title>{escape(self.told)}</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{tips}</defs>",
            f'<rect class="card" x="0.5" y="0.5" width="{self.width - 1}" '
            f'height="{self.height - 1}" rx="14"/>',
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def stitch() -> Picture:
    """Forward goes through three workers, and backward the same way back."""
    picture = Picture(760, 196, "Forward crosses from worker to worker; backward returns there.")
    for number, (name, what) in enumerate(
        [("worker0", "inputs"), ("worker1", "a part of the model"), ("worker2", "the loss")]
    ):
        x = 24 + number * 252
        picture.place(x, 20, 208, 124, name)
        picture.box(x + 24, 62, 160, 58, what)
    for x in (208, 460):
        picture.arrow(f"M{x + 3} 76C{x + 30} 56 {x + 62} 56 {x + 89} 75", "one")
        picture.arrow(f"M{x + 89} 106C{x + 62} 126 {x + 30} 126 {x + 3} 107", "two")
    picture.line("M24 157H736")
    picture.words(24, 179, "forward: values, stitched as they cross", "one-text", anchor="start")
    picture.words(736, 179, "backward: gradients, through every stitch", "two-text", anchor="end")
    return picture


def call() -> Picture:
    """The floors that a call goes through, on both workers."""
    picture = Picture(760, 236, "A call: from face to transport, across, and up to the function.")
    steps = [("agent", "whom, when"), ("wire", "objects ⇄ frames"), ("transport", "bytes")]
    rows = [(20, "caller", "face", "lockstitch.rpc"), (126, "callee", "function", "yours")]
    for y, name, first, more in rows:
        picture.place(20, y, 720, 90, name)
        for number, (box, what) in enumerate([(first, more), *steps]):
            picture.box(120 + number * 154, y + 20, 124, 50, box, what)
            if number:
                x = 120 + number * 154
                picture.arrow(f"M{x - 28} {y + 37}H{x - 3}", "one" if y < 100 else "two")
                picture.arrow(f"M{x - 2} {y + 54}H{x - 27}", "two" if y < 100 else "one")
    picture.arrow("M632 92V144", "one")
    picture.arrow("M656 144V92", "two")
    picture.words(616, 122, "request", "one-text", size=11, anchor="end")
    picture.words(672, 122, "answer", "two-text", size=11, anchor="start")
    return picture


def reference() -> Picture:
    """A user passes its reference to another user (G2)."""
    picture = Picture(760, 316, "A user passes a reference on, and keeps its own until it counts.")
    for x, name in ((130, "user 1"), (380, "owner"), (630, "user 2")):
        picture.box(x - 60, 22, 120, 40, name)
        picture.line(f"M{x} 64V296")
    picture.arrow("M132 96H626", "one")
    picture.words(270, 88, "1  the reference, with a new fork id", "one-text", size=12)
    picture.arrow("M628 146H384", "two")
    picture.words(506, 138, "2  count my fork", "two-text", size=12)
    picture.arrow("M382 186H626", "two")
    picture.words(506, 178, "3  it is counted", "two-text", size=12)
    picture.arrow("M628 228H134", "one")
    picture.words(506, 220, "4  you may let go", "one-text", size=12)
    picture.arrow("M132 276H376", dashed=True)
    picture.words(256, 268, "5  deleted, at some time", "faint", size=12)
    picture.parts.append('<path class="one" d="M118 92V232" stroke-width="5" opacity="0.55"/>')
    picture.words(106, 166, "held", "one-text", size=12, anchor="end")
    return picture


def reduction() -> Picture:
    """Two ranks of one host: logs, tables, and tensors in the segment."""
    picture = Picture(760, 292, "Each rank writes its own log and reads all; each sums for itself.")
    for x, name in ((20, "rank 0"), (540, "rank 1")):
        picture.place(x, 20, 200, 252, name)
        picture.box(x + 24, 58, 152, 50, "table", "who is ready for what")
        picture.box(x + 24, 136, 152, 46, "gradient “w”")
        picture.box(x + 24, 208, 152, 50, "sum of “w”", "same bits on all ranks")
    picture.place(270, 20, 220, 252, "shared memory")
    for x, number in ((290, 0), (386, 1)):
        picture.box(x, 58, 84, 50, f"log of {number}")
        picture.box(x, 136, 84, 46, f"“w” of {number}")
    picture.arrow("M198 74H287", "one")
    picture.arrow("M562 74H473", "one")
    picture.arrow("M288 93H199", "two")
    picture.arrow("M472 93H561", "two")
    picture.words(380, 126, "each writes its own, reads both", "two-text", size=11)
    picture.arrow("M198 159H287", "one")
    picture.arrow("M562 159H473", "one")
    picture.arrow("M332 184V233H561", "two")
    picture.arrow("M428 184V233H199", "two")
    picture.words(380, 254, "each adds both copies", "two-text", size=11)
    return picture


PICTURES = {"stitch": stitch, "call": call, "reference": reference, "reduction": reduction}


SCHEDULES: Final[tuple[ScheduleName, ...]] = ("1f1b", "zero_bubble")
"""Those of pipelines that are drawn, as `Pipeline.picture` does."""


CONTEXT: Final = ContextGraph(
    context_id=0,
    workers=("trainer", "encoder", "table"),
    stitches=(
        Stitch("0.0", "trainer", "encoder", ("float32 64 × 128",), (), "awaited"),
        Stitch("1.0", "encoder", "table", ("float32 64 × 32",), ("0.0",), "awaited"),
        Stitch("2.0", "table", "encoder", ("float32 64 × 32",), ("1.0",), "arrived"),
        Stitch("1.1", "encoder", "trainer", ("float32 64 × 10",), ("0.0", "2.0"), "arrived"),
        Stitch("0.1", "trainer", "table", ("float32 64 × 10",), ("1.1",)),
    ),
)
"""A context as `lockstitch graph` draws it, while a backward pass is on its way."""


def drawn() -> dict[Path, str]:
    """All pictures, with the files that they belong in."""
    pictures = {name: draw().svg() for name, draw in PICTURES.items()}
    for name in SCHEDULES:
        workers = [f"worker{number}" for number in range(4)]
        pictures[name] = draw_schedule(make_schedule(name, range(4), 8), workers, None)
    pictures["context"] = CONTEXT.svg()
    return {HERE / f"{name}.svg": svg for name, svg in pictures.items()}


if __name__ == "__main__":
    for path, svg in drawn().items():
        path.write_text(svg)
