"""Frames of an exchange over connections that have little room."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.arithmetic import UNSCALED
from lockstitch.collectives.c10d import chunk_transfer
from lockstitch.collectives.c10d.chunk_transfer import PeerFailedError, transfer
from lockstitch.collectives.c10d.exchange import PART, Exchange, chunks_of
from lockstitch.collectives.requests import ReduceOp
from lockstitch.transport.stream import StreamConnection
from tests.cluster.collectives.ranks import in_threads

Streams = list[dict[int, StreamConnection]]


def connected(size: int) -> Streams:
    """Every rank's connections to the others, by position."""
    found: Streams = [{} for _ in range(size)]
    for a in range(size):
        for b in range(a):
            one, other = socket.socketpair()
            for each in (one, other):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
            found[a][b] = StreamConnection(one, f"rank {b}")
            found[b][a] = StreamConnection(other, f"rank {a}")
    return found


def end(streams: Streams) -> None:
    for of_rank in streams:
        for stream in of_rank.values():
            stream.close()


def reduce_over(
    flat: torch.Tensor, position: int, streams: dict[int, StreamConnection], **changes: Any
) -> list[torch.Tensor]:
    chunks = chunks_of(flat)
    counts = list(map(len, chunks))
    exchange = Exchange(position, len(streams) + 1, counts, flat.dtype, ReduceOp.SUM, UNSCALED)
    chosen = {"timeout_seconds": 60.0, "silence_seconds": 0.0, **changes}
    return list(transfer(exchange, (3, 0), chunks, streams, SYSTEM_CLOCK, **chosen))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_vectors_are_summed_though_connections_take_little_at_once(
    size: int, dtype: torch.dtype
) -> None:
    streams, count = connected(size), 300_001
    vectors = [torch.arange(count).remainder(7).add(rank).to(dtype) for rank in range(size)]
    wanted = torch.stack(vectors).sum(0)

    def work(rank: int) -> list[torch.Tensor]:
        return reduce_over(vectors[rank], rank, streams[rank])

    for rank, chunks in enumerate(in_threads(size, work)):
        assert torch.equal(vectors[rank], wanted)
        assert sum(map(len, chunks)) == count
    end(streams)


def test_several_exchanges_go_over_the_same_connections() -> None:
    streams = connected(2)
    vectors = [torch.full((50_000,), 1.0 + rank) for rank in range(2)]

    def work(rank: int) -> None:
        for _ in range(5):
            reduce_over(vectors[rank], rank, streams[rank])

    in_threads(2, work)
    assert torch.equal(vectors[0], torch.full((50_000,), 3.0 * 16))
    assert torch.equal(vectors[0], vectors[1])
    end(streams)


def test_rank_that_has_gone_is_named_by_its_position() -> None:
    streams = connected(3)
    for stream in streams[1].values():
        stream.close()
    with pytest.raises(PeerFailedError) as error:
        reduce_over(torch.ones(6), 0, streams[0])
    assert error.value.position == 1
    end(streams)


def test_connection_that_was_closed_before_is_told_also_to_who_only_waits() -> None:
    streams = connected(3)
    for stream in streams[0].values():
        stream.close()
    with pytest.raises(PeerFailedError, match="is closed"):  # of one number this rank has all
        reduce_over(torch.ones(1), 0, streams[0])
    end(streams)


def test_rank_that_goes_in_the_middle_of_a_chunk_is_named() -> None:
    streams = connected(2)
    header = chunk_transfer._HEADER.pack(3, 0, PART, 0, 4 * 4096)
    streams[1][0].send([header + bytes(100)])
    streams[1][0].close()
    with pytest.raises(PeerFailedError) as error:
        reduce_over(torch.ones(8192), 0, streams[0])
    assert error.value.position == 1
    end(streams)


def test_frame_of_another_exchange_is_refused() -> None:
    streams = connected(2)
    streams[1][0].send([chunk_transfer._HEADER.pack(3, 1, PART, 0, 12)])
    with pytest.raises(PeerFailedError, match=r"exchange \[3, 1\] in exchange \(3, 0\)"):
        reduce_over(torch.ones(6), 0, streams[0])
    end(streams)


def test_wait_ends_from_another_thread() -> None:
    streams = connected(2)

    def work(rank: int) -> None:
        if rank:
            streams[0][1].close()
            return
        with pytest.raises(PeerFailedError, match="closed"):
            reduce_over(torch.ones(6), 0, streams[0])

    in_threads(2, work)
    end(streams)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"timeout_seconds": 0.0}, "nothing moved for"),
        ({"silence_seconds": 10.0}, r"its host has been silent for 11\.0 s"),
    ],
)
def test_rank_that_says_nothing_is_named_in_the_end(
    changes: dict[str, float], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_transfer, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(StreamConnection, "seconds_unacknowledged", lambda _self: 11.0)
    streams = connected(2)
    with pytest.raises(PeerFailedError, match=complaint) as error:
        reduce_over(torch.ones(6), 0, streams[0], **changes)
    assert error.value.position == 1
    end(streams)
