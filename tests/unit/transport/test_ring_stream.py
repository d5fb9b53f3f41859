"""Rings beside a stream: the order of messages, and that nobody sleeps on."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.memory import mapping, ring
from lockstitch.memory.doorbell import AWAKE
from lockstitch.memory.ring import (
    CAPACITY,
    HEAD,
    SLEEPS,
    TAIL,
)
from tests.unit.transport.pairs import mapped_bytes
from tests.unit.transport.rings import RingPair
from tests.unit.transport.streams import receive_all
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere

pytestmark = pytest.mark.skipif(not ring.IS_AVAILABLE, reason="needs ordered stores")


@pytest.fixture
def pair():
    pair = RingPair()
    yield pair
    pair.close()


def test_who_looks_finds_it_in_the_ring_and_nothing_in_the_stream(pair):
    pair.look()
    pair.near.send([b"short"])
    assert not pair.is_called
    assert pair.far.has_left_over()
    assert pair.receive() == b"short"
    assert not pair.far.has_left_over()


def test_who_does_not_look_finds_it_in_the_stream(pair):
    pair.near.send([b"short"])
    assert pair.is_called
    assert not pair.far.has_left_over()
    assert pair.receive() == b"short"


def test_who_watches_the_ring_hears_of_what_comes_by_the_stream(pair):
    for _ in range(2):
        pair.near.send([b"short"])  # nobody looks, so it takes the stream
        assert pair.far.ring.watch(itertools.count().__next__, 90) == 0
        assert pair.receive() == b"short"
        assert pair.far.ring.watch(itertools.count().__next__, 90) == 90


def test_answers_go_the_same_way():
    pair = RingPair()
    try:
        pair.near.ring.words[SLEEPS] = AWAKE
        pair.far.send([b"answer"])
        assert pair.near.has_left_over()
        assert receive_all(pair.near, 6) == b"answer"
    finally:
        pair.close()


def test_long_messages_go_by_the_stream_behind_the_short_ones(pair):
    pair.look()
    long = bytes(3 * CAPACITY)
    for each in (b"first", long, b"last"):
        pair.near.send([each])
    assert pair.far.ring.words[TAIL] == 5, "what follows the stream waits for it to be taken"
    assert receive_all(pair.far, 9 + len(long)) == b"first" + long + b"last"


def test_what_comes_into_the_ring_and_then_the_stream_during_a_look_keeps_its_order(pair):
    pair.look()
    receive = pair.far._recv_into

    def send_and_receive(*arguments: Any) -> int:
        pair.far._recv_into = receive
        pair.near.send([b"short"])
        pair.near.send([bytes(2 * CAPACITY)])
        return receive(*arguments)

    pair.far._recv_into = send_and_receive
    assert pair.receive() == b"short"
    assert receive_all(pair.far, 2 * CAPACITY) == bytes(2 * CAPACITY)


def test_who_has_just_looked_away_is_woken_by_a_knock_of_which_nothing_is_seen(pair):
    pair.look()
    pair.before_the_next_put(pair.look_away)
    pair.near.send([b"short"])
    assert pair.is_called
    assert receive_all(pair.far, 5) == b"short"
    assert pair.receive() == b""
    assert not pair.is_called
    pair.near.send([b"stream"])
    pair.look()
    assert pair.receive() == b"stream"
    pair.near.send([b"ring"])
    assert not pair.is_called
    assert pair.receive() == b"ring"


def test_a_receiver_that_blocks_is_not_ended_by_a_knock(pair):
    pair.look()
    pair.before_the_next_put(pair.look_away)
    pair.near.send([b"short"])
    assert pair.receive() == b"short"
    with pytest.raises(BlockingIOError):
        pair.far.receive_into(memoryview(bytearray(9)), [], 0.05)
    assert not pair.is_called, "the knock is gone"


def test_what_a_peer_has_put_in_before_it_ended_is_found_before_the_end(pair):
    pair.look()
    pair.near.send([b"goodbye"])
    pair.near.close()
    assert receive_all(pair.far, 100) == b"goodbye"


def test_what_a_peer_has_put_in_is_found_though_it_ended_without_reading_all(pair):
    pair.far.send([b"request"])
    pair.look()
    receive = pair.far._recv_into

    def end_and_receive(*arguments: Any) -> int:
        pair.far._recv_into = receive
        pair.near.send([b"goodbye"])
        pair.near.close()
        return receive(*arguments)

    pair.far._recv_into = end_and_receive
    assert pair.receive() == b"goodbye"
    counts: list[int] = []
    pair.far.receive_into(memoryview(bytearray(9)), counts, 0)
    assert counts == [0]


def test_a_closed_end_sends_and_receives_no_more(pair):
    pair.look()
    pair.near.send([b"short"])
    pair.far.close()
    counts: list[int] = []
    pair.far.receive_into(memoryview(bytearray(9)), counts, 0)
    assert counts == [0]
    with pytest.raises(ConnectionError):
        pair.far.send([b"answer"])


def test_a_sleeper_is_kept_from_waiting_for_what_is_there_already(pair):
    pair.look()
    pair.near.send([b"short"])
    pair.far.wait_readable(None)  # would need a waker to go on


def test_closing_leaves_no_memory():
    before = mapped_bytes(ring.NAME)
    pair = RingPair()
    assert mapped_bytes(ring.NAME) == before + 2 * 2 * ring.RING_BYTES
    pair.near.close()
    pair.far.close()
    assert mapped_bytes(ring.NAME) == before
    pair.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_touches_no_ring(pair):
    pair.look()
    child = os.fork()
    if child == 0:
        pair.far.has_left_over()
        os._exit(0 if pair.near._writer is None and pair.far.ring is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    pair.near.send([b"short"])
    assert pair.receive() == b"short"


def test_without_memory_it_begins_without_rings(monkeypatch):
    def none_left(*_size_and_name: Any) -> None:
        raise OSError(12, "out of memory")

    monkeypatch.setattr(mapping, "create", none_left)
    pair = RingPair()
    assert pair.near.ring is None
    assert pair.far.ring is None
    pair.near.send([b"short"])
    assert pair.receive() == b"short"
    pair.close()


def test_where_the_other_end_cannot_map_it_all_goes_by_the_stream(monkeypatch):
    def no_room(_descriptor: int, _size: int) -> None:
        raise OSError(12, "out of memory")

    monkeypatch.setattr("lockstitch.transport.unix.Mapping", no_room)
    pair = RingPair()
    assert pair.near.ring is not None
    pair.near.ring.words[SLEEPS] = AWAKE
    pair.far.send([b"answer"])
    assert receive_all(pair.near, 6) == b"answer"
    assert pair.far.ring is None
    pair.near.send([b"short"])
    assert pair.receive() == b"short"
    pair.close()


SIZES = st.one_of(st.integers(1, 200), st.integers(CAPACITY // 3, 2 * CAPACITY))
STEPS = st.one_of(
    st.tuples(st.just("send"), SIZES),
    st.tuples(st.just("receive"), st.integers(1, 3 * CAPACITY)),
    st.tuples(st.sampled_from(["look", "look away", "look away in a moment"]), st.just(0)),
)


@given(st.lists(STEPS, max_size=60))
def test_whatever_happens_all_arrives_in_order_and_nobody_sleeps_on(steps):
    pair = RingPair()
    sent, received = b"", b""

    def look_away() -> None:
        nonlocal received
        received += pair.look_away()

    try:
        for number, (what, size) in enumerate(steps):
            if what == "send":
                message = bytes([number]) * size
                sent += message
                pair.near.send([message])
            elif what == "look":
                pair.look()
            elif what == "look away":
                look_away()
            elif what == "look away in a moment":
                pair.before_the_next_put(look_away)
            elif pair.looks or pair.is_called:
                received += pair.receive(size)
        look_away()
        while pair.is_called:
            received += pair.receive()
    finally:
        pair.close()
    assert received == sent


def test_no_interrupt_of_a_sender_loses_or_tears_a_message():
    module = "lockstitch.transport."

    def attempt(number: int) -> Interrupter:
        pair = RingPair()
        messages = [b"in the ring", bytes(2 * CAPACITY), b"in the stream", b"with a knock"]
        received = b""
        pair.look()
        with interrupted(
            number, module + "unix", "lockstitch.memory.ring", module + "stream"
        ) as strike:
            for index, message in enumerate(messages):
                if index == 3:
                    pair.before_the_next_put(pair.look_away)
                pair.near.send([message])
                received += pair.receive()
        done = strike.remaining > 0
        pair.look_away()
        while pair.is_called or pair.far.has_left_over():
            some = pair.receive()
            if not some:
                break
            received += some
        whole = [b"".join(messages[:count]) for count in range(len(messages) + 1)]
        assert received in (whole[4:] if done else whole) or pair.near.is_closed, strike.where
        if not pair.near.is_closed:
            pair.near.send([b"and on"])
            assert receive_all(pair.far, 6) == b"and on", strike.where
        pair.close()
        return strike

    assert strike_everywhere(attempt) > 20


@pytest.mark.parametrize(
    "later",
    [[[b"second"]], [[bytes(CAPACITY + 1)], [b"third"]], [[b"sec", b"ond"], [b"third"]]],
    ids=["short", "long", "in pieces"],
)
def test_what_follows_an_interrupted_knock_arrives_whole_though_nobody_has_heard_it_yet(later):
    module = "lockstitch.transport."
    rest = b"".join(b"".join(buffers) for buffers in later)

    def attempt(number: int) -> Interrupter:
        pair = RingPair()
        try:
            pair.look()
            pair.before_the_next_put(pair.look_away)
            with interrupted(number, "lockstitch.memory.ring", module + "ring_stream") as strike:
                pair.near.send([b"first"])
            if not pair.near.is_closed:
                for buffers in later:
                    pair.near.send(buffers)
                received = b"".join(iter(pair.receive, b""))
                whole = [b"first" + rest, rest]
                assert received in (whole[:1] if strike.remaining > 0 else whole), strike.where
                assert not pair.is_called, strike.where
        finally:
            pair.close()
        return strike

    assert strike_everywhere(attempt) > 5


def test_no_interrupt_of_a_receiver_loses_or_doubles_a_byte():
    module = "lockstitch.transport."

    def attempt(number: int) -> Interrupter:
        pair = RingPair()
        counts: list[int] = []
        view = memoryview(bytearray(1 << 16))
        place = 0
        messages = [b"in the ring", bytes(2 * CAPACITY), b"in the stream", b"with a knock"]

        def receive() -> None:
            nonlocal place
            try:
                pair.far.receive_into(view[place:], counts, 0)
            except BlockingIOError:
                pass
            finally:
                place = sum(counts)

        pair.look()
        pair.near.send(messages[:1])
        pair.near.send(messages[1:2])
        with interrupted(
            number, module + "unix", "lockstitch.memory.ring", module + "stream"
        ) as strike:
            receive()
            receive()
            receive()
        pair.near.send(messages[2:3])
        receive()
        receive()
        receive()
        pair.before_the_next_put(pair.look_away)
        pair.near.send(messages[3:])
        place = sum(counts)
        with interrupted(strike.remaining, module + "unix", "lockstitch.memory.ring") as second:
            receive()
            receive()
        while pair.is_called or pair.far.has_left_over():
            receive()
        assert bytes(view[:place]) == b"".join(messages), (strike.where, second.where)
        words = pair.far.ring.words
        assert words[HEAD] == words[TAIL]
        pair.close()
        return second if strike.remaining > 0 else strike

    assert strike_everywhere(attempt) > 5
