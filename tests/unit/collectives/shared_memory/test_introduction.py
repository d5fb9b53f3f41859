"""How ranks come to share descriptors; several in this process."""

from __future__ import annotations

import os
import socket

import pytest

from lockstitch.collectives.shared_memory.introduction import (
    Doorway,
    introduce_oneself,
    knock_in_vain,
)
from lockstitch.collectives.shared_memory.segment import Geometry, create
from lockstitch.errors import CollectiveError
from tests.cluster.collectives.ranks import in_threads

GEOMETRY = Geometry(3, arena_bytes=1 << 16, log_words=64, most_sets=1)


def test_everybody_gets_the_segment_and_everybodys_bell() -> None:
    door = Doorway()

    def arrive(rank: int) -> object:
        if rank == 0:
            return door.receive_all(3, create(GEOMETRY), 10)
        return introduce_oneself(door.address, rank, 3, 10)

    known = in_threads(3, arrive)
    door.close()
    assert len({os.fstat(each.segment).st_ino for each in known}) == 1
    os.eventfd_write(known[0].bells[2], 5)
    assert os.eventfd_read(known[2].bells[2]) == 5
    assert all(len(each.lives) == 3 for each in known)
    for each in known:
        each.close()
        each.close()


def test_missing_rank_is_told_after_the_timeout() -> None:
    door = Doorway()
    with pytest.raises(CollectiveError, match="did not all introduce themselves"):
        door.receive_all(2, create(GEOMETRY), 0.05)
    address = door.address
    door.close()
    with pytest.raises(CollectiveError, match="did not all introduce themselves"):
        introduce_oneself(address, 1, 2, 0.05)


def test_visitor_that_hangs_up_is_an_error_and_leaves_nothing() -> None:
    door = Doorway()

    def hang_up() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
            visitor.connect(f"\0{door.address}")

    def receive(rank: int) -> None:
        if rank:
            hang_up()
        else:
            with pytest.raises(CollectiveError):
                door.receive_all(2, create(GEOMETRY), 10)

    in_threads(2, receive)
    door.close()


def test_a_knock_in_vain_ends_the_wait() -> None:
    door = Doorway()

    def receive(rank: int) -> None:
        if rank:
            knock_in_vain(door.address)
        else:
            with pytest.raises(CollectiveError):
                door.receive_all(2, create(GEOMETRY), 50)

    in_threads(2, receive)
    address = door.address
    door.close()
    knock_in_vain(address)  # harmless where nobody is
