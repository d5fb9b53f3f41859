"""How ranks come to share descriptors; several in this process."""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import Any, ClassVar

import pytest

from lockstitch.collectives.shared_memory.introduction import (
    IntroductionListener,
    SharedDescriptors,
    end_introduction,
    join_host,
)
from lockstitch.collectives.shared_memory.segment import Geometry, create
from lockstitch.errors import CollectiveError
from tests.cluster.collectives.ranks import in_threads

GEOMETRY = Geometry(3, arena_bytes=1 << 16, log_words=64, most_sets=1)


class Begun:
    """Stands for the backend."""

    def __init__(self, known: SharedDescriptors) -> None:
        self.known = known
        self.error: BaseException | None = None

    def end(self, error: BaseException) -> None:
        self.error = error
        self.known.close()


def nobody_says(_patience: float) -> str | None:
    return None


def receive(
    listener: IntroductionListener,
    count: int,
    seconds: float = 10,
    why: Any = nobody_says,
    begin: Any = Begun,
) -> Any:
    ranks = [10 * each for each in range(count)]
    return listener.receive_all(ranks, create(GEOMETRY), begin, seconds, why)


def introduce(
    address: str,
    rank: int,
    count: int,
    seconds: float = 10,
    begin: Any = Begun,
    why: Any = nobody_says,
) -> Any:
    ranks = [10 * each for each in range(count)]
    return join_host(address, rank, ranks, begin, seconds, why)


def test_everybody_gets_the_segment_and_everybodys_bell() -> None:
    listener = IntroductionListener()

    def arrive(rank: int) -> object:
        if rank == 0:
            return receive(listener, 3)
        return introduce(listener.address, rank, 3)

    known = [begun.known for begun in in_threads(3, arrive)]
    listener.close()
    assert len({os.fstat(each.segment).st_ino for each in known}) == 1
    os.eventfd_write(known[0].eventfds[2], 5)
    assert os.eventfd_read(known[2].eventfds[2]) == 5
    assert all(len(each.pidfds) == 3 for each in known)
    for each in known:
        each.close()
        each.close()


def test_missing_ranks_are_named_after_the_timeout() -> None:
    listener = IntroductionListener()
    with pytest.raises(CollectiveError, match="rank 0 waited for ranks 10, 20 of its host"):
        receive(listener, 3, 0.05)
    address = listener.address
    listener.close()
    with pytest.raises(CollectiveError, match="rank 10 and rank 0 of the same host did not get"):
        introduce(address, 1, 2, 0.05)


def test_what_a_missing_rank_has_said_elsewhere_is_why() -> None:
    listener = IntroductionListener()
    with pytest.raises(CollectiveError, match="^rank 10 gave up: no memory$"):
        receive(listener, 2, 60, lambda _patience: "rank 10 gave up: no memory")
    listener.close()


def hang_up(listener: IntroductionListener) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.connect(f"\0{listener.address}")


@pytest.mark.parametrize("knock", [hang_up, lambda listener: end_introduction(listener.address)])
def test_visitor_that_hangs_up_is_an_error_and_leaves_nothing(knock: Any) -> None:
    listener = IntroductionListener()

    def run(rank: int) -> None:
        if rank:
            knock(listener)
        else:
            with pytest.raises(CollectiveError):
                receive(listener, 2, 50)

    in_threads(2, run)
    address = listener.address
    listener.close()
    end_introduction(address)  # harmless where nobody is


def refuse(_known: SharedDescriptors) -> Any:
    raise RuntimeError("unable to mmap")


def test_rank_that_cannot_map_the_segment_keeps_all_others_from_beginning() -> None:
    listener = IntroductionListener()
    begun: list[Begun] = []

    def begin(known: SharedDescriptors) -> Begun:
        begun.append(Begun(known))
        return begun[-1]

    def arrive(rank: int) -> None:
        if rank == 0:
            with pytest.raises(CollectiveError, match="rank 0 and ranks 10, 20 of the same host"):
                receive(listener, 3)
        elif rank == 1:
            with pytest.raises(RuntimeError, match="unable to mmap"):
                introduce(listener.address, 1, 3, begin=refuse)
        else:
            with pytest.raises(CollectiveError, match="rank 20 and rank 0 of the same host"):
                introduce(listener.address, 2, 3, begin=begin)

    in_threads(3, arrive)
    listener.close()
    assert isinstance(begun[0].error, CollectiveError)  # it tells who may have begun


class Frail(socket.socket):
    """Of the calls of a thread on all its sockets the nth fails."""

    left: ClassVar[dict[int, int]] = {}
    """For each thread, until then."""

    def _count(self) -> None:
        thread = threading.get_ident()
        self.left[thread] = self.left.get(thread, 0) - 1
        if self.left[thread] == 0:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def recv(self, *arguments: Any) -> Any:
        self._count()
        return super().recv(*arguments)

    def recvmsg(self, *arguments: Any) -> Any:
        self._count()
        return super().recvmsg(*arguments)

    def send(self, *arguments: Any) -> Any:
        self._count()
        return super().send(*arguments)

    def sendmsg(self, *arguments: Any) -> Any:
        self._count()
        return super().sendmsg(*arguments)

    def connect(self, *arguments: Any) -> Any:
        self._count()
        return super().connect(*arguments)


@pytest.mark.parametrize("number", range(1, 14))
@pytest.mark.parametrize("frail", [0, 1])
def test_call_that_fails_ends_it_for_everybody(
    frail: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", Frail)
    listener = IntroductionListener()
    has_failed = threading.Event()
    begun: dict[int, Begun] = {}

    def why(patience: float) -> str | None:
        return "rank 10 gave up: reset" if has_failed.wait(patience / 50) else None

    def arrive(rank: int) -> bool:
        if rank == frail:
            Frail.left[threading.get_ident()] = number

        def begin(known: SharedDescriptors) -> Begun:
            begun[rank] = Begun(known)
            return begun[rank]

        try:
            if rank:
                introduce(listener.address, rank, 3, 20, begin, why)
            else:
                receive(listener, 3, 20, why, begin)
        except CollectiveError:
            has_failed.set()
            if not rank:
                listener.close()
            return False
        return True

    went_well = in_threads(3, arrive)
    listener.close()
    is_told_in_the_segment = any(each.error is not None for each in begun.values())
    assert all(went_well) or not any(went_well) or is_told_in_the_segment
    for each in begun.values():
        each.known.close()
