"""What the workers say, line by line, each line marked with who said it.

Lines go to the launcher's stdout or stderr, as they went to the worker's, and are passed on byte by
byte. A progress bar redraws one line with carriage returns; such a *passing* line is shown at the
bottom of a terminal until something else is said, and not at all where the output is a file.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
        self._passing_on = ""
        """The stream whose console shows a passing line."""
        self.lost: OSError | None = None
        """Why nobody reads any more what is written to one of the two."""

    def line(self, rank: int, stream: str, text: bytes) -> None:
        """Shows a line that worker `rank` wrote to `stream` ("stdout" or "stderr")."""
        mark = self._rendered.get((stream, rank))
        if mark is None:
            mark = _render(_mark(rank, self._width), self._consoles[stream])
            self._rendered[stream, rank] = mark
        time = b""
        if self._clock is not None:
            time = self._clock().isoformat(" ", "milliseconds").encode() + b" "
        with self._shown(stream) as console:
            _write(console, time + mark + text + b"\n")

    def passing(self, rank: int, stream: str, text: bytes) -> None:
        """Draws a line that will be drawn over, if there is a terminal to draw on."""
        if text and self._consoles[stream].is_terminal:
            plain = _ESCAPE_CODES.sub("", text.decode(errors="replace"))
            self._draw(stream, Text.assemble(_mark(rank, self._width), plain))

    def progress(self, text: str) -> None:
        """Draws a line about the job itself at the bottom of a terminal, until something else is
        said."""
        if text and self._consoles["stderr"].is_terminal:
            self._draw("stderr", Text(text, style="dim"))

    def failure(self, rank: int, how: str, stderr_tail: Sequence[bytes]) -> None:
        """Repeats what the worker that failed first said last, between two rules.

        Not in a box: lines stay whole, so that paths can be clicked on and texts be copied.
        """
        if self._verdict is not None:
            self._verdict.write_text(f"{rank} {how}")
        title = Text(f"worker {rank} failed first: {how}", style="bold red")
        with self._shown("stderr") as console:
            console.print()
            if len(title) + len("─  ─") > console.width:  # a rule would cut it off
                console.print(title, soft_wrap=True)
                title = Text()
            console.rule(title, style="red")
            _write(console, b"".join(line + b"\n" for line in stderr_tail))
            console.rule(style="red")

    def note(self, text: str) -> None:
        """Shows a remark of the launcher itself."""
        with self._shown("stderr") as console:
            console.print(Text(text, style="dim"), soft_wrap=True)

    # ------------------------------------------------------------ inside

    def _draw(self, stream: str, line: Text) -> None:
        with self._shown(stream) as console:
            line.truncate(console.width - 1)  # a wrapped line could not be erased
            console.print(line, end="", highlight=False)
            self._passing_on = stream

    @contextlib.contextmanager
    def _shown(self, stream: str) -> Iterator[Console]:
        """Within, something is said, where there may be a passing line before. Where nobody reads
        it any more, a terminal that was closed, say, that and what follows goes nowhere."""
        passing, self._passing_on = self._passing_on, ""
        if passing:
            with self._shown(passing) as console:
                console.file.write(_ERASE)
        console = self._consoles[stream]
        _have_it_block(console)
        try:
            yield console
            console.file.flush()
        except (OSError, SystemExit) as error:  # the latter is what rich makes of a broken pipe
            self.lost = self.lost or (error if isinstance(error, OSError) else BrokenPipeError())
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, console.file.fileno())
            os.close(nowhere)


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


def _have_it_block(console: Console) -> None:
    """A reader that is slow is no reader that has gone. Whoever shares a pipe or a terminal with
    the launcher, a client of ssh or a program in Node, may have said that it shall not block."""
    with contextlib.suppress(OSError):  # no file of the system: in tests
        os.set_blocking(console.file.fileno(), True)


def _write(console: Console, data: bytes) -> None:
    console.file.flush()
    console.file.buffer.write(data)  # type: ignore[attr-defined]
    console.file.buffer.flush()  # type: ignore[attr-defined]
