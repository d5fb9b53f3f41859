"""Frames of an exchange over connections that have little room."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives.arithmetic import UNSCALED
from lockstitch.collectives.c10d import chunk_transfer
from lockstitch.collectives.c10d.ahead import AheadOnLine
from lockstitch.collectives.c10d.chunk_transfer import (
    PeerFailedError,
    PeerLine,
    send_ahead,
    transfer,
)
from lockstitch.collectives.c10d.exchange import PART, Exchange, chunks_of, parts_of
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
    flat: torch.Tensor,
    position: int,
    streams: dict[int, StreamConnection],
    lines: dict[int, PeerLine] | None = None,
    **changes: Any,
) -> list[torch.Tensor]:
    chunks = chunks_of(flat)
    counts = list(map(len, chunks))
    lines = lines or lines_of(streams)
    is_ahead = bool(changes.get("sent"))
    scaling = (ReduceOp.SUM, UNSCALED)
    exchange = Exchange(position, len(lines) + 1, counts, flat.dtype, *scaling, is_ahead=is_ahead)
    chosen = {"timeout_seconds": 60.0, "silence_seconds": 0.0, **changes}
    return list(transfer(exchange, (3, 0), chunks, lines, SYSTEM_CLOCK, **chosen))


def lines_of(streams: dict[int, StreamConnection]) -> dict[int, PeerLine]:
    return {other: PeerLine(stream, AheadOnLine()) for other, stream in streams.items()}


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
        with pytest.raises(PeerFailedError, match="closed|Broken pipe"):
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


def ahead_of(flat: torch.Tensor, lines: list[dict[int, PeerLine]], rank: int, number: int) -> None:
    parts = parts_of(chunks_of(flat)[0], len(lines))
    for other, line in lines[rank].items():
        send_ahead(line, 3, number, parts[other])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("count", [100, 300_001])
def test_parts_that_went_ahead_are_the_first_of_the_exchange_that_names_them(
    size: int, count: int
) -> None:
    lines = [lines_of(streams) for streams in connected(size)]
    vectors = [torch.arange(count).remainder(7).add(rank).float() for rank in range(size)]
    wanted = torch.stack(vectors).sum(0)

    def work(rank: int) -> None:
        ahead_of(vectors[rank], lines, rank, 5 + rank)
        sent = [5 + each for each in range(size)]
        reduce_over(vectors[rank], rank, {}, lines[rank], sent=sent)

    in_threads(size, work)
    assert all(torch.equal(vector, wanted) for vector in vectors)
    assert not any(line.ahead.unsent for of_rank in lines for line in of_rank.values())
    end([{other: line.stream for other, line in of_rank.items()} for of_rank in lines])


def test_parts_that_went_ahead_wait_for_their_exchange_and_those_before_are_forgotten() -> None:
    lines = [lines_of(streams) for streams in connected(2)]
    in_vain, other = torch.full((60_000,), 9.0), [torch.ones(70_000) for _ in range(2)]
    vectors = [torch.full((50_000,), 2.0 + rank) for rank in range(2)]

    def work(rank: int) -> None:
        if rank == 0:
            ahead_of(in_vain, lines, rank, 1)
        ahead_of(vectors[rank], lines, rank, 2)
        in_vain.fill_(8.0) if rank == 0 else None
        reduce_over(other[rank], rank, {}, lines[rank])
        reduce_over(vectors[rank], rank, {}, lines[rank], sent=[2, 2])

    in_threads(2, work)
    for rank in range(2):
        assert torch.equal(other[rank], torch.full((70_000,), 2.0))
        assert torch.equal(vectors[rank], torch.full((50_000,), 5.0))
    end([{other: line.stream for other, line in of_rank.items()} for of_rank in lines])


def test_parts_of_another_size_or_number_than_the_exchange_wants_are_refused() -> None:
    for number, sent, complaint in ((2, 2, "12 bytes of chunk 0, and not"), (3, 2, "where 3 came")):
        lines = [lines_of(streams) for streams in connected(2)]
        ahead_of(torch.ones(6), lines, 1, number)
        if number > sent:
            lines[0][1].ahead.keep(number, torch.ones(1))
        with pytest.raises(PeerFailedError, match=complaint) as error:
            reduce_over(torch.ones(2000), 0, {}, lines[0], sent=[sent, sent])
        assert error.value.position == 1
        end([{other: line.stream for other, line in of_rank.items()} for of_rank in lines])


def test_what_goes_ahead_to_a_rank_that_has_gone_is_no_error_before_the_exchange() -> None:
    lines = [lines_of(streams) for streams in connected(2)]
    lines[1][0].stream.close()
    ahead_of(torch.ones(200_000), lines, 0, 1)
    lines[0][1].stream.close()
    ahead_of(torch.ones(200_000), lines, 0, 2)
    with pytest.raises(PeerFailedError):
        reduce_over(torch.ones(6), 0, {}, lines[0])
