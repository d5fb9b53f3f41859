"""Noticing that the other end is gone, without being told of what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstitch.transport.memory import MemoryNetwork
from lockstitch.transport.unix import UnixTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.transport.base import Connection, Poller, Transport

Pair = tuple["Connection", "Connection", "Poller"]


@pytest.fixture(params=["unix", "memory"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    transport: Transport = (
        UnixTransport() if request.param == "unix" else MemoryNetwork().transport("w")
    )
    listener, poller = transport.listen(), transport.poller()
    ours = transport.connect(listener.address, 5)
    theirs = listener.accept()
    assert theirs is not None
    poller.add(ours)
    yield ours, theirs, poller
    poller.close()
    for end in (ours, theirs, listener, transport):
        end.close()


def test_the_end_of_the_other_side_is_told_once(pair: Pair) -> None:
    ours, theirs, poller = pair
    poller.watch_end(ours)
    theirs.close()
    assert list(poller.wait(5)) == [ours]
    assert not poller.wait(0)


def test_bytes_that_arrive_are_not_told(pair: Pair) -> None:
    ours, theirs, poller = pair
    poller.watch_end(ours)
    theirs.send([b"frame"])
    assert not poller.wait(0)


def test_arming_takes_its_place_and_the_reverse(pair: Pair) -> None:
    ours, theirs, poller = pair
    theirs.send([b"frame"])
    poller.watch_end(ours)
    poller.arm(ours)
    assert list(poller.wait(5)) == [ours]
    poller.arm(ours)
    poller.watch_end(ours)
    assert not poller.wait(0)
