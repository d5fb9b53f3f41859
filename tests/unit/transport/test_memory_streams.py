"""A pipe in memory behaves as a socket does, and its delays are those of the clock."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.testing.clock import ManualClock
from lockstitch.testing.faults import Faults
from lockstitch.transport.base import SendTimeoutError
from lockstitch.transport.memory import MemoryNetwork
from lockstitch.transport.memory_streams import Pipe
from tests.unit.transport.streams import connected, receive_all, receive_some


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def pipe(clock):
    return Pipe(clock, capacity_bytes=100)


@pytest.fixture
def pair(clock):
    with connected(MemoryNetwork(clock).transport("w0")) as ends:
        yield ends


def take(pipe: Pipe, most: int = 100) -> bytes | None:
    view = memoryview(bytearray(most))
    count = pipe.take(view)
    return None if count is None else bytes(view[:count])


def test_reads_are_partial(pipe):
    pipe.put(b"abcdef")
    assert [take(pipe, 4), take(pipe, 4), take(pipe)] == [b"abcd", b"ef", None]


@given(
    frames=st.lists(st.binary(max_size=300), max_size=6),
    reads=st.lists(st.integers(1, 200), min_size=1, max_size=6),
)
def test_the_stream_is_the_same_however_it_is_read(frames, reads):
    pipe = Pipe(SYSTEM_CLOCK, capacity_bytes=10_000)
    for frame in frames:
        pipe.put(frame)
    pipe.end()
    received = b""
    while some := take(pipe, reads[len(received) % len(reads)]):
        received += some
    assert received == b"".join(frames)


def test_a_delayed_frame_arrives_when_it_is_due_and_holds_up_nobody(pipe, clock):
    pipe.put(b"late", after_seconds=5)
    pipe.put(b"early")
    assert [take(pipe), take(pipe)] == [b"early", None]
    assert pipe.readable_at() == 5
    clock.advance(4.9)
    assert take(pipe) is None
    clock.advance(0.1)
    assert take(pipe) == b"late"


def test_delayed_frames_arrive_by_time_then_in_order(pipe, clock):
    pipe.put(b"c", after_seconds=2)
    pipe.put(b"a", after_seconds=1)
    pipe.put(b"b", after_seconds=1)
    clock.advance(2)
    assert [take(pipe), take(pipe), take(pipe)] == [b"a", b"b", b"c"]


def test_a_frame_that_was_due_arrives_before_one_that_is_sent_now(pipe, clock):
    pipe.put(b"first", after_seconds=1)
    clock.advance(1)
    pipe.put(b"second")
    assert [take(pipe), take(pipe)] == [b"first", b"second"]


def test_a_frame_held_back_arrives_behind_later_ones(pipe):
    pipe.put(b"held", behind=2)
    assert take(pipe) is None
    pipe.put(b"one")
    pipe.put(b"two")
    pipe.put(b"three")
    assert [take(pipe) for _ in range(4)] == [b"one", b"two", b"held", b"three"]


def test_a_slow_reader_holds_its_writer_up(pipe):
    pipe.put(bytes(100))
    writer = threading.Thread(target=pipe.put, args=(b"more",))
    writer.start()
    writer.join(0.01)
    assert writer.is_alive()
    take(pipe)
    writer.join()
    assert take(pipe) == b"more"


def test_a_writer_gives_up_when_its_time_is_over(pipe, clock):
    pipe.put(bytes(100))
    errors = []

    def write() -> None:
        try:
            pipe.put(b"never", remaining_time=lambda: 5 - clock.now())
        except SendTimeoutError as error:
            errors.append(error.is_begun)

    writer = threading.Thread(target=write)
    writer.start()
    clock.wait_until_waiting()
    clock.advance(5)
    writer.join()
    assert errors == [False]
    assert [take(pipe), take(pipe)] == [bytes(100), None]


def test_the_end_comes_after_what_has_arrived_and_loses_what_is_on_its_way(pipe, clock):
    pipe.put(b"arrived")
    pipe.put(b"delayed", after_seconds=1)
    pipe.end()
    clock.advance(1)
    assert [take(pipe), take(pipe), take(pipe)] == [b"arrived", b"", b""]


def test_the_end_frees_a_blocked_writer(pipe):
    pipe.put(bytes(100))
    errors = []

    def write() -> None:
        try:
            pipe.put(b"more")
        except ConnectionError as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(0.01)
    pipe.end()
    writer.join()
    assert len(errors) == 1


def test_what_one_sends_the_other_receives(pair):
    near, far = pair
    near.send([b"th", bytearray(b"er"), memoryview(b"e")])
    far.send([b"back"])
    assert receive_all(far, 5) == b"there"
    assert receive_all(near, 4) == b"back"


def test_receiving_waits_by_the_clock(pair, clock):
    _, far = pair
    with pytest.raises(BlockingIOError):
        receive_some(far, timeout_seconds=0)
    errors = []

    def receive() -> None:
        try:
            receive_some(far, timeout_seconds=30)
        except BlockingIOError as error:
            errors.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    clock.wait_until_waiting()
    clock.advance(29)
    assert not errors
    clock.wait_until_waiting()
    clock.advance(1)
    receiver.join()
    assert len(errors) == 1


def test_a_blocked_receiver_gets_what_comes(pair):
    near, far = pair
    received = []
    receiver = threading.Thread(target=lambda: received.append(receive_some(far)))
    receiver.start()
    near.send([b"x"])
    receiver.join()
    assert received == [b"x"]


def test_closing_ends_both_directions(pair):
    near, far = pair
    received = []
    receiver = threading.Thread(target=lambda: received.append(receive_some(near)))
    receiver.start()
    near.close()
    near.close()
    receiver.join()
    assert received == [b""]
    assert receive_some(far) == b""
    for end in pair:
        with pytest.raises(ConnectionError):
            end.send([b"x"])


def test_a_poller_waits_for_a_frame_that_is_on_its_way(clock):
    network = MemoryNetwork(clock, faults=Faults().delay(by=5))
    with connected(network.transport("w0")) as (near, far):
        poller = network.transport("w0").poller()
        poller.add(far)
        poller.arm(far)
        near.send([b"\0\0\0\0\x01"])
        told = []
        waiter = threading.Thread(target=lambda: told.extend(poller.wait(60)))
        waiter.start()
        clock.wait_until_waiting()
        clock.advance(5)
        waiter.join()
        assert told == [far]
        poller.close()
