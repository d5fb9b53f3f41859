"""A segment that is lent is the receiver's alone, until it says otherwise, and is warm afterwards.
Both ends are in this process; `tests/processes/test_segments.py` has them in two."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lockstitch.memory import leases
from lockstitch.memory.blocks import TRIAL_BLOCKS
from lockstitch.memory.pools import IDLE_SECONDS
from lockstitch.memory.segments import LEAST_BYTES
from tests.unit.transport.pairs import MB, Pair, mapped_bytes
from tests.unit.transport.streams import receive_all, wait_for_connection

# ---------------------------------------------------------------- lending


def test_receiver_sees_what_the_sender_wrote(pair):
    window = pair.take(pair.lend(b"the bytes"))
    assert bytes(window[:9]) == b"the bytes"
    assert len(window) >= LEAST_BYTES


def test_both_directions_lend(pair):
    loan = pair.far.lend(LEAST_BYTES)
    ctypes.memmove(loan.address, b"back", 4)
    window, _lease = pair.near.window(loan.number)
    assert bytes(window[:4]) == b"back"


def test_segment_is_the_receivers_alone_until_the_last_reference_is_gone(pair):
    window = pair.take(pair.lend(b"first"))
    part = memoryview(window).cast("B")[:5]
    del window
    other = pair.take(pair.lend(b"other"))
    assert bytes(part) == b"first"
    part[:5] = b"mine!"
    assert bytes(other[:5]) == b"other"
    address = ctypes.addressof(other)
    del other
    del part
    addresses = set()
    for text in (b"third", b"fourth"):
        window = pair.take(pair.lend(text))
        assert bytes(window[: len(text)]) == text
        addresses.add(ctypes.addressof(window))
        del window
    assert address in addresses
    assert pair.pool.statistics().made == 2


def test_segment_that_was_announced_and_not_yet_received_is_not_lent_again(pair):
    numbers = [pair.lend(b"%d" % n) for n in range(TRIAL_BLOCKS)]
    assert len(set(numbers)) == TRIAL_BLOCKS
    windows = [pair.take(number) for number in reversed(numbers)]
    assert [bytes(window[:1]) for window in windows] == [b"3", b"2", b"1", b"0"]


def test_cancelled_loan_is_lent_again(pair):
    for _ in range(3):
        loan = pair.near.lend(LEAST_BYTES)
        loan.cancel()
    assert pair.pool.statistics().lent == 0
    window = pair.take(pair.lend(b"data"))
    assert bytes(window[:4]) == b"data"
    assert pair.pool.statistics().made == 1


def test_little_is_left_to_the_stream(pair):
    assert pair.near.lend(LEAST_BYTES - 1) is None


def test_receiver_that_keeps_all_is_soon_served_by_the_stream(pair):
    kept = []
    while (number := pair.lend(b"%d" % len(kept))) is not None:
        kept.append(pair.take(number))
    assert len(kept) == TRIAL_BLOCKS
    assert pair.pool.statistics().refused == 1
    assert [bytes(window[:1]) for window in kept] == [b"%d" % n for n in range(TRIAL_BLOCKS)]


def test_capacity_is_that_of_all_peers_together():
    pair = Pair(capacity=4 * MB)
    other = pair._transports[0].connect(pair._listener.address, 1.0)
    other_end = wait_for_connection(pair._listener)
    other.send([b"hello"])
    receive_all(other_end, 5)
    window = pair.take(pair.lend(b"x", 3 * MB))
    assert other.lend(2 * MB) is None
    del window
    loan = other.lend(2 * MB)  # what the first one had is warm, but spare
    assert loan is not None
    assert pair.pool.statistics().bytes == 2 * MB
    number = pair.lend(b"again", MB)  # the number is used again for another segment
    assert bytes(pair.take(number)[:5]) == b"again"
    other.close()
    other_end.close()
    pair.close()


def test_idle_segments_are_given_back_and_made_anew(pair):
    pair.take(pair.lend(b"old"))
    pair.pool.statistics()
    pair.clock.advance(IDLE_SECONDS + 1)
    pair.pool.trim()
    assert pair.pool.statistics().bytes == 0
    assert bytes(pair.take(pair.lend(b"new"))[:3]) == b"new"


# ---------------------------------------------------------------- without


@pytest.mark.parametrize(("near", "far"), [(None, None), (MB, None), (None, MB)])
def test_one_side_that_wants_none_is_enough_for_none(near, far):
    pair = Pair(near, far)
    assert pair.near.lend(LEAST_BYTES) is None
    assert pair.far.lend(LEAST_BYTES) is None
    with pytest.raises(ConnectionError, match="segment, 0, "):
        pair.far.window(0)
    pair.far.send([b"but bytes"])
    assert receive_all(pair.near, 9) == b"but bytes"
    pair.close()


def test_without_memory_or_descriptors_there_is_the_stream(pair, monkeypatch):
    window = pair.take(pair.lend(b"x"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert pair.lend(b"y", 2 * MB) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert pair.lend(b"y", 2 * MB) is None  # not asked again at once
    del window
    assert pair.lend(b"z") is not None  # what is there is lent meanwhile
    pair.clock.advance(2)
    assert pair.lend(b"y", 2 * MB) is not None
    assert pair.pool.statistics().refused == 2


def test_system_that_forbids_shared_memory_leaves_the_stream_and_is_asked_again(pair, monkeypatch):
    def forbidden(*_arguments):
        raise PermissionError(errno.EPERM, "memfd_create is filtered")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", forbidden)
        assert pair.lend(b"x") is None
    assert pair.lend(b"x") is None
    pair.clock.advance(2)
    assert bytes(pair.take(pair.lend(b"x"))[:1]) == b"x"


def test_size_limit_of_files_leaves_the_stream(pair):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MB, hard))
    try:
        assert pair.lend(b"y", 2 * MB) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---------------------------------------------------------------- ends


def test_nothing_is_mapped_when_connections_and_tensors_are_gone():
    before = mapped_bytes()
    pair = Pair()
    window = pair.take(pair.lend(b"kept"))
    pair.close()
    assert pair.pool.statistics().bytes == 0
    assert bytes(window[:4]) == b"kept"  # its user may go on
    del window, pair
    assert mapped_bytes() == before


def test_loan_of_a_connection_that_ends_meanwhile_does_no_harm(pair):
    loan = pair.near.lend(LEAST_BYTES)
    pair.near.close()
    ctypes.memset(loan.address, 1, LEAST_BYTES)
    loan.cancel()
    assert pair.near.lend(LEAST_BYTES) is None
    assert pair.pool.statistics().bytes == 0


def test_no_descriptor_stays_open(pair):
    pair.take(pair.lend(b"x"))
    before = len(os.listdir("/proc/self/fd"))
    kept = [pair.take(pair.lend(b"x", size * MB)) for size in range(1, 6)]
    assert len(os.listdir("/proc/self/fd")) == before
    del kept


# ---------------------------------------------------------------- forks


def run_in_child(action) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(action())
        except BaseException:  # noqa: BLE001 - the status tells
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_what_is_in_use_at_a_fork_is_never_lent_again(pair):
    window = pair.take(pair.lend(b"inherited"))
    spare = pair.lend(b"spare")
    pair.take(spare)
    kept = [window]
    assert run_in_child(lambda: kept[0][:9] != b"inherited") == 0
    first = ctypes.addressof(window)
    del window
    kept.clear()
    addresses = set()
    for _ in range(4):
        again = pair.take(pair.lend(b"later"))
        addresses.add(ctypes.addressof(again))
        del again
    assert first not in addresses
    assert pair.pool._ledger.retired(pair.near._lent) == []  # its number is free again


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_child_gives_nothing_back_and_lends_nothing():
    pair = Pair()
    kept = {"window": pair.take(pair.lend(b"parent's"))}
    state = pair.near._lent.table

    def drop() -> int:
        kept.clear()
        gc.collect()
        return 0 if pair.near.lend(LEAST_BYTES) is None else 1

    number = 0
    assert state[number] == leases.LENT
    assert run_in_child(drop) == 0
    assert state[number] == leases.KEPT  # by the fork, not given back by the child
    kept.clear()
    assert state[number] == leases.GONE
    pair.close()


# ---------------------------------------------------------------- any order


class Exchange(RuleBasedStateMachine):
    """Messages are sent, received, kept, written to and dropped in any order."""

    sent = Bundle("sent")
    received = Bundle("received")

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(capacity=4 * MB)
        self.serial = 0

    @rule(target=sent, nbytes=st.sampled_from([LEAST_BYTES, LEAST_BYTES + 1, MB, 3 * MB]))
    def send(self, nbytes: int):
        self.serial += 1
        text = b"message %d" % self.serial
        number = self.pair.lend(text, nbytes)
        return [number, text]

    @rule(target=received, message=consumes(sent))
    def receive(self, message):
        number, text = message
        window = None if number is None else self.pair.take(number)
        return [window, text]

    @rule(message=received)
    def read(self, message) -> None:
        window, text = message
        assert window is None or bytes(window[: len(text)]) == text

    @rule(message=received)
    def write(self, message) -> None:
        if message[0] is not None:
            message[1] = b"my own " + message[1]
            message[0][: len(message[1])] = message[1]

    @rule(message=consumes(received))
    def drop(self, message) -> None:
        self.read(message)
        message[0] = None

    @rule()
    def let_time_pass(self) -> None:
        self.pair.clock.advance(IDLE_SECONDS)
        self.pair.pool.trim()

    @invariant()
    def capacity_is_kept(self) -> None:
        assert self.pair.pool.statistics().bytes <= 4 * MB

    def teardown(self) -> None:
        self.pair.close()
        assert self.pair.pool.statistics().bytes == 0


TestExchange = Exchange.TestCase
TestExchange.settings = settings(max_examples=25, stateful_step_count=30)
