"""One copy for several receivers: isolated from each other, and used again when all are through.
All ends are in this process; `tests/processes/test_groups.py` has them in several."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING

import pytest

from lockstitch.memory import leases
from lockstitch.memory.host_copies import LEAST_BYTES, HostCopies
from lockstitch.memory.segments import SegmentPool
from lockstitch.testing import ManualClock
from lockstitch.wire.tensors import Memory
from tests.unit.transport.pairs import MB, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator


class Star:
    """One sender, with connections to two receivers."""

    def __init__(self) -> None:
        self.pairs = [Pair(), Pair()]
        self.pool = SegmentPool(64 * MB, ManualClock())
        for pair in self.pairs:
            assert pair.near._lent is not None
            pair.near._lent._pool = self.pool

    def lend(self, copies: HostCopies, *memories: Memory) -> list[int | None]:
        """The number under which each receiver gets the memories."""
        nbytes = sum(each.nbytes for each in memories)
        filled = lambda make: copies.copy_of(memories, nbytes, make)  # noqa: E731
        loans = [pair.near.lend(nbytes, filled) for pair in self.pairs]
        return [None if loan is None else loan.number for loan in loans]

    def send(self, *memories: Memory) -> list:
        """What each receiver then has."""
        copies = HostCopies()
        numbers = self.lend(copies, *memories)
        copies.close()
        return [pair.take(number) for pair, number in zip(self.pairs, numbers, strict=True)]

    def close(self) -> None:
        for pair in self.pairs:
            pair.close()


@pytest.fixture
def star() -> Iterator[Star]:
    star = Star()
    yield star
    star.close()


def memory(byte: bytes, nbytes: int = LEAST_BYTES) -> Memory:
    buffer = ctypes.create_string_buffer(byte * nbytes, nbytes)
    return Memory(ctypes.addressof(buffer), nbytes, buffer)


def test_each_sees_all_of_it_and_nobody_what_another_writes(star) -> None:
    one, other = star.send(memory(b"a"), memory(b"b"))
    assert bytes(one[:3]) == bytes(other[:3]) == b"aaa"
    assert bytes(other[LEAST_BYTES : LEAST_BYTES + 3]) == b"bbb"
    one[0] = b"x"
    assert bytes(other[:1]) == b"a"
    other[1] = b"y"
    assert bytes(one[:3]) == b"xaa"


def test_memory_is_filled_again_only_when_all_have_let_go(star) -> None:
    one, other = star.send(memory(b"a"))
    del one
    gc.collect()
    later = star.send(memory(b"b"))
    assert bytes(other[:2]) == b"aa"
    assert star.pool.statistics().made == 2
    del other, later
    gc.collect()
    assert star.pool.statistics().lent == 0
    assert [bytes(each[:2]) for each in star.send(memory(b"c"))] == [b"cc", b"cc"]
    assert star.pool.statistics().made == 2
    assert star.pool.statistics().reused == 1


def test_numbers_are_used_again(star) -> None:
    for _ in range(2000):
        star.send(memory(b"a"))
    assert star.pool.statistics().made <= 2


def test_what_brings_something_else_is_copied_apart(star) -> None:
    copies, first = HostCopies(), memory(b"a")
    assert None not in star.lend(copies, first)
    assert star.lend(copies, memory(b"b")) == [None, None]
    assert star.lend(HostCopies(), memory(b"a", LEAST_BYTES - 1)) == [None, None]
    copies.close()
    copies.close()


def test_what_a_forked_child_may_have_is_never_filled_again(star) -> None:
    one, other = star.send(memory(b"a"))
    received = star.pairs[0].far._received
    assert received is not None
    received.before_fork()
    in_child = bytes(one[:2])
    del one, other
    gc.collect()
    assert star.pool.statistics().blocks == 0
    star.send(memory(b"b"))
    assert in_child == b"aa"


def test_what_an_ended_connection_may_have_is_never_filled_again(star) -> None:
    one, other = star.send(memory(b"a"))
    star.pairs[0].near.close()
    del other
    gc.collect()
    assert star.pool.statistics().blocks == 0
    assert bytes(one[:2]) == b"aa"


def test_receiver_that_cannot_map_it_has_a_copy(star, monkeypatch) -> None:
    from lockstitch.memory import received_segments  # noqa: PLC0415 - to be patched

    mapped = received_segments.Mapping

    def refused(descriptor, size):
        if size > leases.TABLE_BYTES:
            raise OSError("no room")
        return mapped(descriptor, size)

    monkeypatch.setattr(received_segments, "Mapping", refused)
    one, other = star.send(memory(b"a"))
    one[0] = b"x"
    assert bytes(other[:2]) == b"aa"
    del one, other
    gc.collect()
    assert star.pool.statistics().lent == 0


def test_cancelled_loan_is_nobodys(star) -> None:
    copies, one = HostCopies(), memory(b"a")
    loan = star.pairs[0].near.lend(one.nbytes, lambda make: copies.copy_of([one], one.nbytes, make))
    loan.cancel()
    copies.close()
    assert star.pool.statistics().lent == 0
    assert [bytes(each[:2]) for each in star.send(memory(b"b"))] == [b"bb", b"bb"]


def test_no_memory_means_no_copy_and_no_loan(star, monkeypatch) -> None:
    monkeypatch.setattr("lockstitch.memory.mapping._available_bytes", lambda: 0)
    assert star.lend(HostCopies(), memory(b"a")) == [None, None]
