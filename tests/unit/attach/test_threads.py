"""Where threads are, seen from another one."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstitch.attach.threads import (
    SourceFolders,
    code_line,
    frames_of,
    look_at_threads,
    own_line,
    served_line,
)
from lockstitch.errors import text_of
from lockstitch.testing.clock import ManualClock
from tests.unit.runtime.stage import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType


def _stand(entered: threading.Event, leave: threading.Event) -> None:
    entered.set()
    leave.wait(60)  # here


def test_a_thread_is_told_by_the_innermost_line_of_the_users_own_code() -> None:
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=_stand, args=(entered, leave), name="stander")
    thread.start()
    try:
        assert entered.wait(60)
        reports = look_at_threads(stacks=True)
    finally:
        leave.set()
        thread.join()
    assert reports[0].kind == "main"
    (told,) = [each for each in reports if each.name == "stander"]
    assert told.kind == "user"
    assert told.native_id == thread.native_id
    assert told.at is not None
    assert told.at.function == "_stand"
    assert told.at.text == "leave.wait(60)  # here"
    functions = [line.function for line in told.stack]
    assert functions.index("_stand") < functions.index("wait")


def test_without_code_of_the_user_a_thread_is_a_librarys() -> None:
    entered, leave = threading.Event(), threading.Event()
    entered.set()
    thread = threading.Thread(target=leave.wait, args=(60,), name="waiter")
    thread.start()
    try:
        (told,) = [each for each in look_at_threads() if each.name == "waiter"]
    finally:
        leave.set()
        thread.join()
    assert told.kind == "library"
    assert told.stack == ()
    assert told.at is not None
    assert told.at.file == threading.__file__


def test_a_line_without_a_file_has_no_text() -> None:
    namespace: dict[str, object] = {"sys": sys}
    exec(compile("frame = sys._getframe()", "<nowhere>", "exec"), namespace)
    frame = namespace["frame"]
    line = code_line(frame)  # type: ignore[arg-type]
    assert (line.file, line.line, line.text) == ("<nowhere>", 1, "")


def test_frames_come_innermost_first() -> None:
    frame = sys._getframe()
    assert next(frames_of(frame)) is frame
    assert own_line(frame).function == "test_frames_come_innermost_first"


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="needs /proc")
def test_what_a_thread_stands_in_is_told() -> None:
    held, leave = threading.Lock(), threading.Event()
    reading, writing = os.pipe()

    def wait_for_lock() -> None:
        with held:
            pass

    def look_now_and_then() -> None:
        while not leave.wait(60):
            pass

    ways: dict[str, Callable[[], object]] = {
        "lock": wait_for_lock,
        "sleep": look_now_and_then,
        "": lambda: os.read(reading, 1),
        "lockstitch": lambda: ManualClock().wait(leave, None),
    }
    with held:
        threads = [threading.Thread(target=way, name=f"in {name}") for name, way in ways.items()]
        for each in threads:
            each.start()
        try:
            expected = {f"in {name}": name for name in ways}
            wait_until(lambda: _standing(expected) == expected)
        finally:
            leave.set()
            os.write(writing, b"x")
    for thread in threads:
        thread.join()
    os.close(reading)
    os.close(writing)


def _standing(names: Iterable[str]) -> dict[str, str]:
    return {each.name: each.stands_in for each in look_at_threads() if each.name in names}


def test_who_only_waits_for_the_interpreter_stands_in_no_lock() -> None:
    has_ended = False

    def compute() -> None:
        while not has_ended:
            pass

    threads = [threading.Thread(target=compute, name=f"computes {n}") for n in range(4)]
    for each in threads:
        each.start()
    found: set[str] = set()
    for _ in range(20):
        found |= set(_standing([each.name for each in threads]).values())
    has_ended = True
    for each in threads:
        each.join()
    assert found == {""}


class Asked(Exception):  # noqa: N818 - it is only shown
    """Knows the frame that has asked for its text."""

    frame: FrameType

    def __str__(self) -> str:
        self.frame = sys._getframe(1)
        return ""


def test_a_call_that_is_served_in_c_or_by_this_library_is_at_no_line_of_the_program() -> None:
    ours, pythons = Asked(), Asked()
    text_of(ours)
    traceback.format_exception_only(Asked, pythons)
    here = sys._getframe()
    assert str(served_line([ours.frame], SourceFolders())) == "no line of the program"
    assert served_line([ours.frame, here], SourceFolders()).file == __file__
    assert served_line([pythons.frame], SourceFolders()).file == pythons.frame.f_code.co_filename
