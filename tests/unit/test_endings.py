"""Marks: what they say of an exception, and that they come out of a line as they went in."""

from __future__ import annotations

import pytest

from lockstitch.endings import Mark, take_mark
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
