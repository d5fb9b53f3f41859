"""Marks: what they say of an exception, and that they come out of a line as they went in."""

from __future__ import annotations

import pytest

from lockstitch.endings import Ending, Mark, StepMark, take_mark, take_step
from lockstitch.errors import PeerDiedError


def test_a_mark_says_whether_an_exception_tells_of_a_lost_peer() -> None:
    assert Mark.of(None) == Mark()
    assert Mark.of(ValueError("own")) == Mark("ValueError")
    assert Mark.of(PeerDiedError("w")) == Mark("PeerDiedError", is_of_lost_peer=True)


@pytest.mark.parametrize(
    "mark",
    [
        Mark(),
        Mark("ValueError"),
        Mark("RankLostError", is_of_lost_peer=True),
        Mark("KeyError", is_of_worker=False),
    ],
)
def test_marks_come_out_of_a_line_and_leave_the_rest(mark: Mark) -> None:
    line = mark.encode().removesuffix(b"\n")
    assert take_mark(line) == (b"", mark)
    assert take_mark(b"before " + line + b"after") == (b"before after", mark)


def test_other_lines_stay_as_they_are() -> None:
    for line in (b"", b"text", b"\x1b[31mred\x1b[0m", b"\x1b_other\x1b\\", b"\xff"):
        assert take_mark(line) == (line, None)


@pytest.mark.parametrize(
    "step", [StepMark(3, ()), StepMark(12, (("loss", 0.5), ("näh\x1b", float("inf"))))]
)
def test_steps_come_out_of_a_line_and_leave_the_rest(step: StepMark) -> None:
    line = step.encode().removesuffix(b"\n")
    assert take_step(b"before " + line + b"after") == (b"before after", step)
    assert take_mark(line) == (line, None)


@pytest.mark.parametrize(
    "told",
    [
        *(b"", b"3", b"[3]", b'["x",[]]', b'[3,[["loss","low"]]]', b"[Infinity,[]]"),
        b'[3,[["loss",1' + b"0" * 400 + b"]]]",
        b"[" * 50_000,
    ],
    ids=range(8),
)
def test_what_is_no_step_is_taken_out_and_nothing_else(told: bytes) -> None:
    line = b"\x1b_lockstitch:step:" + told + b"\x1b\\"
    assert take_step(line) == (b"", None)
    assert take_step(b"text") == (b"text", None)


def test_a_process_that_is_no_worker_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    Ending().say(StepMark(1, ()).encode())
    assert capfd.readouterr() == ("", "")
