from __future__ import annotations

import os
import selectors

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.launch.agent.lines import Lines


class Ends:
    """Lines, and the other ends of their two pipes."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        incoming, self.to_lines = os.pipe()
        self.from_lines, outgoing = os.pipe()
        self.taken, self.events = [], []
        self.lines = Lines(
            self.selector, incoming, outgoing, self.taken.append, lambda: self.events.append("end")
        )
        self.lines.on_empty = lambda: self.events.append("empty")
        self.lines.on_written = lambda: self.events.append("written")

    def turn(self):
        for key, _ in self.selector.select(0):
            key.data()

    def say(self, data):
        os.write(self.to_lines, data)
        self.turn()

    def hear(self):
        return os.read(self.from_lines, 1 << 20)

    def hang_up(self):
        for name in ("to_lines", "from_lines"):
            descriptor, self.__dict__[name] = self.__dict__[name], None
            if descriptor is not None:
                os.close(descriptor)

    def close(self):
        self.hang_up()
        self.lines.close()
        self.selector.close()


@pytest.fixture
def ends():
    ends = Ends()
    yield ends
    ends.close()


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_come_whole_however_they_are_cut(lines, data):
    ends = Ends()
    try:
        rest = b"".join(line + b"\n" for line in lines)
        while rest:
            count = data.draw(st.integers(1, len(rest)))
            ends.say(rest[:count])
            rest = rest[count:]
        assert ends.taken == [line for line in lines if line]
        assert ends.events == ["empty"] * lines.count(b"")
    finally:
        ends.close()


def test_a_ping_is_an_empty_line_and_anything_counts_as_a_sign_of_life(ends):
    ends.lines.ping()
    assert ends.hear() == b"\n"
    ends.say(b"x")
    assert (ends.lines.heard, ends.taken) == (1, [])


def test_what_nobody_reads_is_kept_and_written_in_order(ends):
    big = b"x" * (1 << 20)
    ends.lines.send(big)
    ends.lines.send(b"last")
    ends.lines.ping()  # says nothing: what is kept will say as much
    assert ends.lines.kept_bytes > 0
    heard = b""
    while ends.lines.kept_bytes:
        heard += ends.hear()
        ends.turn()
    assert heard + ends.hear() == big + b"\nlast\n"
    assert ends.events == ["written"]


def test_the_end_is_told_once_after_the_last_words(ends):
    os.write(ends.to_lines, b"one\nlast words")
    ends.hang_up()
    for _ in range(3):
        ends.turn()
        ends.lines.send(b"nobody reads that")
    assert ends.taken == [b"one", b"last words"]
    assert ends.events == ["end"]
    assert not ends.lines.is_open


def test_a_reader_that_has_gone_is_noticed_by_writing(ends):
    os.close(ends.from_lines)
    ends.from_lines = None
    with pytest.raises(BrokenPipeError):
        ends.lines.ping()
    ends.lines.send(b"x")
    assert ends.events == ["end"]
    ends.say(b"still heard\n")
    assert ends.taken == [b"still heard"]


def test_nothing_waits_for_what_cannot_be_written_any_more(ends):
    ends.lines.send(b"x" * (1 << 20))
    os.close(ends.from_lines)
    ends.from_lines = None
    ends.turn()
    assert ends.lines.kept_bytes == 0
    assert ends.events == ["written", "end"]


def test_closing_twice_is_harmless_and_tells_the_other_end(ends):
    for _ in range(2):
        ends.lines.close_outgoing()
    assert ends.hear() == b""
    ends.lines.finish()
    ends.lines.close()
    assert not ends.lines.is_open
