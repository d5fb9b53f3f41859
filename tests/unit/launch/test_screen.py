"""Lines, marks and passing lines, on a screen made of bytes."""

from __future__ import annotations

import io
import os
import threading
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lockstitch.launch.screen import LineBuffer, Screen


def screen_of_bytes(workers: int = 2, *, terminal: bool = False) -> tuple[Screen, io.BytesIO]:
    seen = io.BytesIO()
    file = io.TextIOWrapper(seen, encoding="utf-8", write_through=True)
    console = Console(file=file, force_terminal=terminal, width=20, no_color=True)
    return Screen(workers, out=console, err=console), seen


@given(st.lists(st.binary(max_size=20)))
def test_lines_do_not_depend_on_how_bytes_are_cut(chunks: list[bytes]) -> None:
    piecewise, at_once = LineBuffer(), LineBuffer()
    lines = [line for chunk in chunks for line in piecewise.feed(chunk)]
    assert lines == at_once.feed(b"".join(chunks))
    assert piecewise.flush() == at_once.flush()


def test_of_a_redrawn_line_only_the_last_drawing_remains() -> None:
    assert LineBuffer().feed(b"10%\r50%\r100% done\r\n") == [b"100% done"]


def test_unfinished_line_is_passing_once_a_carriage_return_drew_on_it() -> None:
    buffer = LineBuffer()
    buffer.feed(b"just text")
    assert buffer.passing == b""
    buffer.feed(b"\r 10%\r 20%")
    assert buffer.passing == b" 20%"


def test_endless_line_is_not_kept_for_ever() -> None:
    assert LineBuffer().feed(b"x" * 100_000) == [b"x" * 100_000]


def test_line_is_marked_and_its_bytes_are_untouched() -> None:
    screen, seen = screen_of_bytes()
    screen.line(1, "stdout", b"\xff [bold] \x1b[1m" + b"long " * 10)
    assert seen.getvalue() == b"[w1] \xff [bold] \x1b[1m" + b"long " * 10 + b"\n"


def test_marks_are_equally_wide() -> None:
    screen, seen = screen_of_bytes(workers=11)
    screen.line(2, "stdout", b"a")
    screen.line(10, "stderr", b"b")
    assert seen.getvalue() == b"[w2]  a\n[w10] b\n"


def test_passing_line_is_erased_before_anything_else_is_said() -> None:
    screen, seen = screen_of_bytes(terminal=True)
    screen.passing(0, "stdout", b"10%")
    screen.line(1, "stdout", b"hello")
    text = seen.getvalue()
    assert text.index(b"10%") < text.index(b"\r\x1b[2K") < text.index(b"hello")


def test_passing_line_never_wraps() -> None:
    screen, seen = screen_of_bytes(terminal=True)
    screen.passing(0, "stdout", b"\x1b[32m" + b"=" * 50)
    assert seen.getvalue().count(b"=") == 20 - 1 - len("[w0] ")


def test_passing_lines_do_not_go_into_files() -> None:
    screen, seen = screen_of_bytes(terminal=False)
    screen.passing(0, "stdout", b"10%")
    assert seen.getvalue() == b""


@pytest.mark.parametrize("terminal", [True, False])
def test_failure_repeats_the_last_words_whole(terminal: bool) -> None:
    screen, seen = screen_of_bytes(terminal=terminal)
    words = b"a traceback's line that is wider than the screen"
    screen.failure(3, "exit code 1", [words])
    assert b"\n" + words + b"\n" in seen.getvalue()


def test_lines_begin_with_the_time_where_that_is_wanted() -> None:
    seen = io.BytesIO()
    file = io.TextIOWrapper(seen, encoding="utf-8", write_through=True)
    console = Console(file=file, no_color=True)
    noon = datetime(2026, 1, 2, 12, 0, 0, 5000)
    Screen(2, out=console, err=console, clock=lambda: noon).line(1, "stdout", b"text")
    assert seen.getvalue() == b"2026-01-02 12:00:00.005 [w1] text\n"


def test_where_nobody_reads_any_more_the_other_console_goes_on() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    seen = io.BytesIO()
    with os.fdopen(writing, "w") as gone:
        err = Console(file=io.TextIOWrapper(seen, write_through=True))
        screen = Screen(2, out=Console(file=gone), err=err)
        for _ in range(2):
            screen.line(0, "stdout", b"told")
            assert isinstance(screen.lost, BrokenPipeError)
            screen.note("noted")
    assert seen.getvalue() == b"noted\n" * 2


def test_a_slow_reader_gets_all_though_somebody_has_told_the_pipe_not_to_block() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    seen: list[bytes] = []
    with os.fdopen(reading, "rb") as slow, os.fdopen(writing, "w") as file:
        console = Console(file=file)
        screen = Screen(1, out=console, err=console)
        screen.line(0, "stdout", b"1")
        reader = threading.Thread(target=lambda: seen.append(slow.read()))
        waiting = threading.Timer(0.05, reader.start)  # until the pipe is full
        waiting.start()
        for _ in range(100):
            screen.line(0, "stdout", b"x" * 5_000)
        file.close()
        waiting.join()
        reader.join()
    assert screen.lost is None
    assert seen == [b"[w0] 1\n" + (b"[w0] " + b"x" * 5_000 + b"\n") * 100]
