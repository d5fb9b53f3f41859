"""Short messages in memory that both ends look into: their order, and that nobody sleeps on."""

from __future__ import annotations

import pytest

from lockstitch.memory import ring
from lockstitch.memory.doorbell import ASLEEP, AWAKE
from lockstitch.memory.ring import (
    CAPACITY,
    RING_BYTES,
    SLEEPS,
    TAIL,
    TAKEN,
    RingReader,
    RingWriter,
)

pytestmark = pytest.mark.skipif(not ring.IS_AVAILABLE, reason="needs ordered stores")


@pytest.fixture
def ends():
    memory = memoryview(bytearray(RING_BYTES))
    reader = RingReader(memory)
    assert reader.words[SLEEPS] == AWAKE
    return RingWriter(memory), reader


def take(reader: RingReader, most: int = CAPACITY) -> bytes:
    view, counts = memoryview(bytearray(most)), []
    reader.take(view, counts)
    return bytes(view[: sum(counts)])


def test_frames_come_out_in_order_also_around_the_corner(ends):
    writer, reader = ends
    for number in range(100):
        frames = [bytes([number]) * 999, bytes([number + 1]) * 1001]
        assert [writer.put(frame, 0) for frame in frames] == [True, True]
        assert take(reader) == b"".join(frames)
    assert take(reader) == b""
    assert not reader.look_away()
    assert reader.words[SLEEPS] == ASLEEP


def test_a_short_view_takes_a_part(ends):
    writer, reader = ends
    writer.put(b"abcdef", 0)
    assert [take(reader, 4), take(reader, 4)] == [b"abcd", b"ef"]


def test_nothing_is_put_where_nobody_looks_or_the_stream_is_not_taken_or_there_is_no_room(ends):
    writer, reader = ends
    assert not writer.put(b"x", 1)
    reader.words[TAKEN] = 1
    assert not writer.put(b"x", 0)
    assert writer.put(bytes(CAPACITY), 1)
    assert not writer.put(b"x", 1)
    take(reader, 1)
    assert writer.put(b"x", 1)
    reader.words[SLEEPS] = ASLEEP
    take(reader)
    assert not writer.put(b"x", 1)


@pytest.mark.parametrize("tail", [CAPACITY + 1, (1 << 64) - 1])
def test_nonsense_of_the_other_end_breaks_the_connection(ends, tail):
    writer, reader = ends
    writer.words[TAIL] = tail
    with pytest.raises(ConnectionError, match="cannot hold"):
        take(reader)


def test_a_watch_ends_when_something_comes_or_the_time_is_over(ends):
    writer, reader = ends
    times = iter(range(100))
    assert reader.watch(lambda: next(times), 7) == 7

    def now() -> int:
        time = next(times)
        if time == 20:
            writer.put(b"x", 0)
        return time

    assert reader.watch(now, 90) == 20
