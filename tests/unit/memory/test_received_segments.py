"""What a peer has lent is found, used and given back, also where it cannot be mapped.
Both ends are in this process; `tests/processes/test_segments.py` has them in two."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import sys

import pytest

from lockstitch.memory import leases, received_segments
from tests.unit.transport.pairs import MB, Pair


def test_window_that_is_not_taken_can_be_opened_again(pair):
    """As a reader does after an interrupt."""
    number = pair.lend(b"data")
    for _ in range(3):
        window, _lease = pair.far.window(number)
        assert bytes(window[:4]) == b"data"
        del window, _lease
    assert pair.pool.statistics().lent == 1
    del number


def test_segment_that_was_never_lent_is_an_error(pair):
    pair.lend(b"x")
    with pytest.raises(ConnectionError, match="names a segment, 7, that it has not lent"):
        pair.far.window(7)


def test_segment_that_has_been_given_back_is_an_error(pair):
    number = pair.lend(b"x")
    pair.take(number)
    with pytest.raises(ConnectionError, match="that it has not lent"):
        pair.far.window(number)


def unmappable(monkeypatch, sizes=lambda _size: True):
    """The receiving end cannot map memory of these sizes."""
    mapped = received_segments.Mapping

    def refused(descriptor, size):
        if sizes(size):
            raise OSError(errno.ENOMEM, "no room")
        return mapped(descriptor, size)

    monkeypatch.setattr(received_segments, "Mapping", refused)


@pytest.mark.parametrize(
    "sizes",
    [lambda _size: True, lambda size: size > leases.TABLE_BYTES],
    ids=["nor the table", "but the table"],
)
def test_segment_that_cannot_be_mapped_is_read_and_not_lent_again(pair, monkeypatch, sizes):
    with monkeypatch.context() as patch:
        unmappable(patch, sizes)
        number = pair.lend(b"first")
        window = pair.take(number)
        assert bytes(window[:5]) == b"first"
        window[0] = b"F"  # its own memory
        assert pair.lend(b"second") is None
        assert pair.pool.statistics().bytes == 0
        pair.clock.advance(1.5)
        assert bytes(pair.take(pair.lend(b"third"))[:5]) == b"third"
        assert pair.lend(b"fourth") is None
        pair.clock.advance(1.5)  # it takes twice as long now
        assert pair.lend(b"fourth") is None
    assert bytes(window[:5]) == b"First"
    pair.clock.advance(1)
    assert bytes(pair.take(pair.lend(b"fifth"))[:5]) == b"fifth"


def test_receiver_that_can_map_again_is_served_by_warm_segments_again(pair, monkeypatch):
    warm = pair.take(pair.lend(b"warm"))
    with monkeypatch.context() as patch:
        unmappable(patch)
        assert bytes(pair.take(pair.lend(b"read", 2 * MB))[:4]) == b"read"
        del warm
        number = pair.lend(b"still")  # what is mapped can be lent all the time
        assert bytes(pair.take(number)[:5]) == b"still"
        assert pair.lend(b"large", 2 * MB) is None
    pair.clock.advance(1.5)
    numbers = set()
    for _ in range(3):
        numbers.add(pair.lend(b"mapped", 2 * MB))
        pair.take(max(numbers))
    assert len(numbers) == 1


def test_read_segment_can_be_opened_again_until_it_is_taken_and_then_goes(pair, monkeypatch):
    unmappable(monkeypatch)
    number = pair.lend(b"data")
    pair.far.window(number)  # an interrupt: nobody has it
    window = pair.take(number)
    assert bytes(window[:4]) == b"data"
    del window
    with pytest.raises(ConnectionError, match="that it has not lent"):
        pair.far.window(number)


def test_memory_that_cannot_even_be_read_is_named(pair, monkeypatch):
    pair.take(pair.lend(b"x"))
    number = pair.lend(b"y", 2 * MB)
    unmappable(monkeypatch)
    monkeypatch.setattr(received_segments, "Copy", received_segments.Mapping)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConnectionError, match="cannot be used: .*no room"):
        pair.far.window(number)
    assert len(os.listdir("/proc/self/fd")) == before


def test_segments_arrive_where_no_more_files_can_be_opened(pair):
    number = pair.lend(b"first")  # neither this nor the table has been received
    files = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        window = pair.take(number)
        assert bytes(window[:5]) == b"first"
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)  # there is a reserve again
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in files:
            os.close(each)
    del window
    assert pair.lend(b"again") == number  # it is mapped


def test_descriptors_that_the_receiver_cannot_take_are_named(pair):
    pair.take(pair.lend(b"x"))
    number = pair.lend(b"y", 2 * MB)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(ConnectionError, match="too many open files"):
            pair.far.window(number)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_peer_that_is_gone_before_its_segment_came_is_named(pair):
    pair.take(pair.lend(b"x"))
    number = pair.lend(b"y", 2 * MB)
    pair.take(number)
    pair.far._received._table[9] = leases.NEW  # as if it had announced one more
    pair.near.close()
    with pytest.raises(ConnectionError, match="the peer is gone"):
        pair.far.window(9)


def test_finalizers_may_look_at_memory_that_is_garbage_with_them(pair):
    class Owner:
        def __init__(self, window) -> None:
            self.window = window
            self.itself = self

        def __del__(self) -> None:
            seen.append(bytes(self.window[:4]))

    seen: list[bytes] = []
    owner = Owner(pair.take(pair.lend(b"data")))
    pair.close()
    del owner
    gc.collect()
    assert seen == [b"data"]


def test_end_of_a_window_runs_nothing_of_python_in_which_an_interrupt_could_be_lost(pair):
    window = pair.take(pair.lend(b"x"))
    frames = []
    sys.setprofile(lambda frame, event, _: frames.append(frame) if event == "call" else None)
    try:
        del window
    finally:
        sys.setprofile(None)
    assert frames == []
    assert pair.near._lent.table[0] == leases.FREE


def test_stores_behind_fences_end_a_window_as_well(monkeypatch):
    monkeypatch.setattr(leases, "STORES_ARE_ORDERED", False)
    pair = Pair()
    window = pair.take(pair.lend(b"x"))
    del window
    assert pair.near._lent.table[0] == leases.FREE
    pair.close()
