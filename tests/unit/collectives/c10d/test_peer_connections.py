"""Ranks that connect to exchange chunks, on the loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from torch.distributed import HashStore

from lockstitch.collectives.c10d.link_options import LinkOptions
from lockstitch.collectives.c10d.peer_connections import PeerConnections
from lockstitch.errors import CollectiveError
from lockstitch.link.addresses import host_and_port
from lockstitch.link.sockets import HeldPort
from lockstitch.transport import TcpTransport
from lockstitch.transport.stream import StreamConnection
from lockstitch.trust import Secret
from tests.cluster.collectives.ranks import in_threads

Make = Callable[..., PeerConnections]
SECRET = Secret(bytes(32))


@pytest.fixture
def make() -> Iterator[Make]:
    store, made = HashStore(), []

    def of(
        rank: int,
        secret: Secret = SECRET,
        ports: range | None = None,
        heartbeat: float = 10.0,
    ) -> PeerConnections:
        options = LinkOptions(secret, heartbeat=heartbeat)
        made.append(PeerConnections(rank, store, TcpTransport(ports=ports), options))
        return made[-1]

    yield of
    for peers in made:
        peers.close()
        peers.close()


def test_each_two_of_the_ranks_share_one_connection(make: Make) -> None:
    ranks = {rank: make(rank) for rank in (1, 4, 6)}
    places = list(ranks)
    found = in_threads(3, lambda place: ranks[places[place]].connect(places, 20.0))
    for mine, rank in zip(found, places, strict=True):
        assert set(mine) == set(places) - {rank}
        for other, stream in mine.items():
            stream.send([bytes([rank, other])])
    for mine, rank in zip(found, places, strict=True):
        for other, stream in mine.items():
            counts: list[int] = []
            stream.receive_into(memoryview(space := bytearray(2)), counts, 20.0)
            assert list(space) == [other, rank]
    again = ranks[1].connect([6, 1], 0.0)
    assert again == {6: found[0][6]}


def test_rank_that_does_not_come_is_named(make: Make) -> None:
    with pytest.raises(
        CollectiveError, match=r"ranks 1, 2 did not connect to rank 0 within 0\.1 s"
    ):
        make(0).connect([0, 1, 2], 0.1)
    with pytest.raises(CollectiveError, match="rank 3 has not said in time"):
        make(4).connect([3, 4], 0.1)


def test_host_that_does_not_answer_is_not_waited_for_longer_than_it_may_be_silent(
    make: Make,
) -> None:
    calling = make(1, heartbeat=0.3)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        socket.create_connection(server.getsockname()),  # there is no room for a second one
    ):
        host, port = server.getsockname()
        calling._store.set("chunks/0", f"tcp:{host}:{port}")
        began_at = time.monotonic()
        with pytest.raises(CollectiveError, match=r"rank 1 could not connect to rank 0 .* 0\.24 s"):
            calling.connect([0, 1], 60.0)
        assert time.monotonic() - began_at < 10.0


@pytest.mark.parametrize(("heartbeat", "silent"), [(10.0, 8.1), (0.5, 2.1)])
def test_rank_whose_host_is_silent_is_named(
    make: Make, heartbeat: float, silent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [make(rank, heartbeat=heartbeat) for rank in range(2)]
    in_threads(2, lambda rank: ranks[rank].connect([0, 1], 20.0))
    monkeypatch.setattr(StreamConnection, "seconds_unacknowledged", lambda _self: silent - 0.2)
    ranks[0].check_silence()
    monkeypatch.setattr(StreamConnection, "seconds_unacknowledged", lambda _self: silent)
    with pytest.raises(CollectiveError, match=f"from rank 1, any more .* silent for {silent} s"):
        ranks[0].check_silence()


def test_nobody_is_silent_where_that_may_last_for_ever(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [make(rank, heartbeat=0.0) for rank in range(2)]
    in_threads(2, lambda rank: ranks[rank].connect([0, 1], 20.0))
    monkeypatch.setattr(StreamConnection, "seconds_unacknowledged", lambda _self: 1e9)
    ranks[0].check_silence()


def test_stranger_is_not_let_in(make: Make) -> None:
    waiting, stranger = make(0), make(1, Secret(b"x" * 32))

    def work(rank: int) -> None:
        if rank:
            with pytest.raises(
                CollectiveError, match=r"rank 1 could not connect to rank 0 at .*proof"
            ):
                stranger.connect([0, 1], 20.0)
        else:
            with pytest.raises(CollectiveError, match="rank 1 did not connect"):
                waiting.connect([0, 1], 1.0)

    in_threads(2, work)


def test_garbage_is_turned_away_and_others_come_all_the_same(make: Make) -> None:
    ranks = [make(0), make(1)]
    with pytest.raises(CollectiveError):
        ranks[0].connect([0, 1], 0.0)
    host, port = host_and_port(ranks[0]._store.get("chunks/0").decode().removeprefix("tcp:"))
    with socket.create_connection((host, port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        found = in_threads(2, lambda rank: ranks[rank].connect([0, 1], 20.0))
        assert [list(each) for each in found] == [[1], [0]]


def test_wait_for_others_ends_with_the_session(make: Make) -> None:
    waiting = make(0)

    def work(rank: int) -> None:
        if rank:
            waiting.abort()
        else:
            with pytest.raises(CollectiveError, match="rank 0 connects to nobody any more"):
                waiting.connect([0, 1], 60.0)

    in_threads(2, work)


def test_any_port_does_where_all_others_are_taken(make: Make) -> None:
    with HeldPort("127.0.0.1") as held, socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", held.number))
        taken.listen()
        ranks = [make(0, ports=range(held.number, held.number + 1)), make(1)]
        found = in_threads(2, lambda rank: ranks[rank].connect([0, 1], 20.0))
    assert [list(each) for each in found] == [[1], [0]]


def test_nobody_listens_any_more_where_the_session_ends_meanwhile(make: Make) -> None:
    peers, store = make(0), HashStore()

    class EndsNow:
        def set(self, key: str, value: str) -> None:
            store.set(key, value)
            peers.close()

    peers._store = cast("Any", EndsNow())
    with pytest.raises(CollectiveError, match="connects to nobody any more"):
        peers.connect([0, 1], 60.0)
    host, port = host_and_port(store.get("chunks/0").decode().removeprefix("tcp:"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))
