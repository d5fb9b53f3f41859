"""What the workers say, line by line, each line marked with who said it.

Lines go to the launcher's stdout or stderr, as they went to the worker's, and are passed on byte by
byte. A progress bar redraws one line with carriage returns; such a *passing* line is shown at the
bottom of a terminal until something else is said, and not at all where the output is a file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from rich.console import Console

_LONGEST_LINE = 1 << 16
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "white")
_ESCAPE_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ERASE = "\r\x1b[2K"


class LineBuffer:
    """Cuts one stream of bytes into lines. The line not yet ended may be a passing one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that `chunk` completes, without their ends."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self.flush())
        return [_last_drawn(line) for line in lines]

    @property
    def passing(self) -> bytes:
        """What a carriage return last drew on the unfinished line, or nothing."""
        return _last_drawn(self._rest) if b"\r" in self._rest else b""

    def flush(self) -> bytes:
        """Returns the unfinished line, which will not be finished."""
        line, self._rest = _last_drawn(self._rest), b""
        return line


class Screen:
    """Writes the workers' lines, and in the end what went wrong; that also into the file `verdict`,
    for a program that has started the launcher."""

    def __init__(
        self,
        workers: int,
        out: Console,
        err: Console,
        verdict: Path | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """`clock`: tells the time with which lines of workers begin; None: with none."""
        self._verdict = verdict
        self._clock = clock
        self._consoles = {"stdout": out, "stderr": err}
        self._width = len(f"[w{workers - 1}]")
        self._rendered: dict[tuple[str, int], bytes] = {}
        self._passing_on: Console | None = None

    def line(self, rank: int, stream: str, text: bytes) -> None:
        """Shows a line that worker `rank` wrote to `stream` ("stdout" or "stderr")."""
        self._erase_passing()
        mark = self._rendered.get((stream, rank))
        if mark is None:
            mark = _render(_mark(rank, self._width), self._consoles[stream])
            self._rendered[stream, rank] = mark
        time = b""
        if self._clock is not None:
            time = self._clock().isoformat(" ", "milliseconds").encode() + b" "
        _write(self._consoles[stream], time + mark + text + b"\n")

    def passing(self, rank: int, stream: str, text: bytes) -> None:
        """Draws a line that will be drawn over, if there is a terminal to draw on."""
        console = self._consoles[stream]
        if not console.is_terminal or not text:
            return
        self._erase_passing()
        plain = _ESCAPE_CODES.sub("", text.decode(errors="replace"))
        line = Text.assemble(_mark(rank, self._width), plain)
        line.truncate(console.width - 1)  # a wrapped line could not be erased
        console.print(line, end="", highlight=False)
        console.file.flush()
        self._passing_on = console

    def progress(self, text: str) -> None:
        """Draws a line about the job itself at the bottom of a terminal, until something else is
        said."""
        console = self._consoles["stderr"]
        if not console.is_terminal or not text:
            return
        self._erase_passing()
        line = Text(text, style="dim")
        line.truncate(console.width - 1)
        console.print(line, end="", highlight=False)
        console.file.flush()
        self._passing_on = console

    def failure(self, rank: int, how: str, stderr_tail: Sequence[bytes]) -> None:
        """Repeats what the worker that failed first said last, between two rules.

        Not in a box: lines stay whole, so that paths can be clicked on and texts be copied.
        """
        self._erase_passing()
        if self._verdict is not None:
            self._verdict.write_text(f"{rank} {how}")
        console = self._consoles["stderr"]
        console.print()
        title = Text(f"worker {rank} failed first: {how}", style="bold red")
        if len(title) + len("─  ─") > console.width:  # a rule would cut it off
            console.print(title, soft_wrap=True)
            title = Text()
        console.rule(title, style="red")
        _write(console, b"".join(line + b"\n" for line in stderr_tail))
        console.rule(style="red")

    def note(self, text: str) -> None:
        """Shows a remark of the launcher itself."""
        self._erase_passing()
        self._consoles["stderr"].print(Text(text, style="dim"), soft_wrap=True)

    def _erase_passing(self) -> None:
        if self._passing_on is not None:
            self._passing_on.file.write(_ERASE)
            self._passing_on.file.flush()
            self._passing_on = None


def _mark(rank: int, width: int) -> Text:
    style = Style(color=_COLOURS[rank % len(_COLOURS)])
    return Text.assemble((f"[w{rank}]".ljust(width), style), " ")


def _render(text: Text, console: Console) -> bytes:
    with console.capture() as rendered:
        console.print(text, end="")
    return rendered.get().encode()


def _last_drawn(line: bytes) -> bytes:
    """Returns what remains visible of a line that carriage returns drew over and over."""
    return next((part for part in reversed(line.split(b"\r")) if part), b"")


def _write(console: Console, data: bytes) -> None:
    console.file.flush()
    console.file.buffer.write(data)  # type: ignore[attr-defined]
    console.file.flush()
