"""Logs in shared memory, over an ordinary piece of memory."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.collectives.shared_memory import log
from lockstitch.collectives.shared_memory.log import LogReader, LogWriter, word

SIZE = 64


def make() -> tuple[LogWriter, LogReader, LogReader]:
    ring = memoryview(bytearray(8 * SIZE)).cast("Q")
    tails = memoryview(bytearray(8 * 3)).cast("Q")
    cursors = memoryview(bytearray(8 * 3)).cast("Q")
    return (
        LogWriter(ring, tails, cursors, 1),
        LogReader(ring, tails, cursors, 1, 0),
        LogReader(ring, tails, cursors, 1, 2),
    )


def test_farewell_says_why() -> None:
    for reason, is_death in ((b"", False), (b"rank 2 died", True), (b"x" * 5000, True)):
        words = [word(log.DONE), *log.leave_record(reason, is_death)]
        assert log.content(words, 1) == (reason[:1024], len(words))
        assert words[1] & 15 == log.LEAVE
        assert bool(words[1] >> 20 & log.BY_DEATH) == is_death


def test_word_holds_what_number_and_argument() -> None:
    each = word(log.SUBMIT, 0xABCD, log.RESIDENT | 12345)
    assert (each & 15, (each >> 4) & 0xFFFF) == (log.SUBMIT, 0xABCD)
    argument = each >> 20
    assert argument & log.RESIDENT
    assert argument & log.PLACE_MASK == 12345
    assert each < 1 << 64


@given(st.binary(max_size=100))
def test_definition_is_read_back(content: bytes) -> None:
    words = [word(log.DONE), *log.definition(7, content), word(log.LEAVE)]
    assert log.content(words, 1) == (content, len(words) - 1)


def test_reader_gets_whole_records_in_order() -> None:
    writer, reader, _ = make()
    assert list(reader.read()) == []
    writer.append([1, 2, 3])
    assert writer.append_if_room(4, 0)
    assert list(reader.read()) == [1, 2, 3, 4]
    assert list(reader.read()) == []
    assert (reader.position, writer.written) == (4, 4)


def test_writer_overruns_no_reader() -> None:
    writer, quick, slow = make()
    written = 0
    while writer.has_room(4):
        writer.append([written] * 4)
        written += 4
        quick.read()
        quick.tell()
    assert written == SIZE
    assert len(slow.read()) == SIZE
    slow.position -= SIZE // 2  # it will read on from there
    slow.tell()
    assert writer.has_room(SIZE // 2)
    assert not writer.has_room(SIZE // 2 + 1)
    assert len(slow.read()) == SIZE // 2


def test_short_submissions_are_known_by_their_flag() -> None:
    assert log.is_short(word(log.SUBMIT, 0xFFFF, log.SHORT | 3))
    assert not log.is_short(word(log.SUBMIT, 0xFFFF, log.RESIDENT | log.PLACE_MASK))
    assert not log.is_short(word(log.DONE, 0, log.SHORT))
    assert (log.SHORT | 3) & log.PLACE_MASK == 3


@given(st.integers(0, 10**6))
def test_everything_arrives_once_whatever_the_pace(seed: int) -> None:
    chance = random.Random(seed)
    writer, *readers = make()
    seen: list[list[int]] = [[], []]
    sent = 0
    for _ in range(200):
        count = chance.randint(1, 12)
        if writer.has_room(count):
            writer.append(list(range(sent, sent + count)))
            sent += count
        for reader, found in zip(readers, seen, strict=True):
            if chance.random() < 0.5:
                found += reader.read()
                reader.tell()
    for reader, found in zip(readers, seen, strict=True):
        found += reader.read()
        assert found == list(range(sent))
