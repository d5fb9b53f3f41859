"""Vectors that ranks reduce chunk by chunk, over a network that delivers whenever it likes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lockstitch.collectives.arithmetic import UNSCALED, can_reduce, reduce, result_scale
from lockstitch.collectives.c10d.exchange import (
    PART,
    RESULT,
    Exchange,
    Frame,
    chunks_of,
    parts_of,
)
from lockstitch.collectives.requests import ReduceOp, Reduction
from lockstitch.errors import ProtocolError

Step = Callable[[], None]


class Network:
    """All ranks of one exchange. What has left is a copy, and comes in the order of each pair."""

    def __init__(
        self, vectors: list[list[torch.Tensor]], reduction: Reduction, *, is_ahead: bool = False
    ) -> None:
        """`vectors`: the chunks of each rank."""
        size, counts = len(vectors), list(map(len, vectors[0]))
        scale, dtype = result_scale(reduction, size), vectors[0][0].dtype
        self.ranks = [
            Exchange(rank, size, counts, dtype, reduction.op, scale, is_ahead=is_ahead)
            for rank in range(size)
        ]
        self.chunks = [deque(chunks) for chunks in vectors]
        self.wires: dict[tuple[int, int], deque[Frame]] = {
            (a, b): deque() for a in range(size) for b in range(size) if a != b
        }
        self.finished: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self.sent = [0] * size
        for a, b in self.wires if is_ahead else ():
            part = parts_of(vectors[a][0], size)[b].clone()
            self.wires[a, b].append(Frame(PART, 0, part))

    def steps(self) -> list[Step]:
        """What could happen next."""
        found: list[Step] = []
        for rank, exchange in enumerate(self.ranks):
            if exchange.wants_chunk:
                found.append(lambda r=rank: self.ranks[r].begin(self.chunks[r].popleft()))
        for (a, b), wire in self.wires.items():
            if self.ranks[a].outgoing[b]:
                found.append(lambda a=a, b=b: self._send(a, b))
            # What went ahead may be there before a rank begins; no result is looked for by then.
            if wire and (self.ranks[b]._next or wire[0].kind == PART):
                found.append(lambda a=a, b=b: self._deliver(a, b))
        return found

    def run(self, chance: random.Random) -> None:
        """Lets things happen until nothing more can."""
        while steps := self.steps():
            chance.choice(steps)()
            for rank, exchange in enumerate(self.ranks):
                self.finished[rank] += exchange.finished()
                assert len(exchange._begun) <= 8
        assert all(exchange.is_over for exchange in self.ranks)
        assert not any(
            exchange.frames_to_come(b)
            for a, exchange in enumerate(self.ranks)
            for b in range(len(self.ranks))
            if b != a
        )

    def _send(self, a: int, b: int) -> None:
        frame = self.ranks[a].outgoing[b][0]
        assert len(frame.content)
        self.wires[a, b].append(frame._replace(content=frame.content.clone()))
        self.sent[a] += len(frame.content)
        self.ranks[a].has_left(b)

    def _deliver(self, a: int, b: int) -> None:
        frame = self.wires[a, b].popleft()
        assert self.ranks[b].frames_to_come(a)
        space = self.ranks[b].space(a, frame.kind, frame.chunk, frame.content.nbytes)
        space.copy_(frame.content)
        self.ranks[b].has_come(a, frame._replace(content=space))


@given(
    st.integers(1, 5),
    st.integers(1, 300),
    st.sampled_from([op for op in ReduceOp if op is not ReduceOp.ADASUM]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8]),
    st.integers(1, 90),
    st.randoms(use_true_random=False),
)
def test_all_ranks_get_the_bits_that_one_process_would_however_frames_are_on_their_way(
    size: int,
    count: int,
    op: ReduceOp,
    dtype: torch.dtype,
    chunk: int,
    chance: random.Random,
) -> None:
    assume(can_reduce(dtype, op))
    generator = torch.Generator().manual_seed(count)
    parts = [(9 * torch.randn(count, generator=generator)).to(dtype) for _ in range(size)]
    reduction = Reduction(op, postscale=chance.choice([1.0, 3.0]))
    wanted = reduce(reduction, [part.clone() for part in parts], size, torch.empty_like(parts[0]))
    chunks = [list(torch.split(part, chunk)) for part in parts]
    is_ahead = len(chunks[0][0]) >= size and chance.random() < 0.5
    network = Network(chunks, reduction, is_ahead=is_ahead)
    network.run(chance)
    for rank, part in enumerate(parts):
        assert torch.equal(part, wanted)
        assert [each.data_ptr() for each in network.finished[rank]] == [
            each.data_ptr() for each in chunks[rank]
        ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_rank_sends_the_least_there_can_be(size: int) -> None:
    count = 120 * 1024
    vectors = [chunks_of(torch.ones(count)) for _ in range(size)]
    network = Network(vectors, Reduction(ReduceOp.SUM))
    network.run(random.Random(1))
    assert all(
        sent == pytest.approx(2 * (size - 1) * count / size, rel=1e-3) for sent in network.sent
    )


@given(st.integers(0, 1 << 24), st.sampled_from([torch.uint8, torch.float32, torch.complex128]))
def test_chunks_are_the_vector_in_pieces_of_a_size_that_suits_it(
    nbytes: int, dtype: torch.dtype
) -> None:
    flat = torch.empty(nbytes // dtype.itemsize, dtype=dtype)
    chunks = chunks_of(flat)
    assert sum(map(len, chunks)) == len(flat)
    assert [each.data_ptr() for each in chunks[:1]] == [flat.data_ptr()][: len(chunks)]
    assert all(64 << 10 <= each.nbytes <= 1 << 20 for each in chunks[:-1])
    assert all(each.nbytes <= 1 << 20 for each in chunks)


def an_exchange() -> Exchange:
    exchange = Exchange(0, 2, [4, 4], torch.float32, ReduceOp.SUM, UNSCALED)
    exchange.begin(torch.zeros(4))
    return exchange


@pytest.mark.parametrize(
    ("kind", "chunk", "nbytes", "complaint"),
    [
        (PART, 1, 8, "not its turn"),
        (RESULT, 1, 8, "not its turn"),
        (7, 0, 8, "not its turn"),
        (PART, 0, 12, "12 bytes of chunk 0, and not 8"),
        (RESULT, 0, 4, "4 bytes of chunk 0, and not 8"),
    ],
)
def test_frames_that_cannot_come_are_refused(
    kind: int, chunk: int, nbytes: int, complaint: str
) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        an_exchange().space(1, kind, chunk, nbytes)


def test_result_of_what_has_not_begun_is_refused() -> None:
    exchange = Exchange(0, 2, [4], torch.float32, ReduceOp.SUM, UNSCALED)
    with pytest.raises(ProtocolError, match="has not begun"):
        exchange.space(1, RESULT, 0, 8)


def test_no_frame_comes_twice() -> None:
    exchange = an_exchange()
    space = exchange.space(1, PART, 0, 8)
    exchange.has_come(1, Frame(PART, 0, space))
    with pytest.raises(ProtocolError, match="not its turn"):
        exchange.space(1, PART, 0, 8)


def test_chunk_is_not_over_before_its_result_has_left() -> None:
    exchange = an_exchange()
    for kind in (PART, RESULT):
        exchange.has_come(1, Frame(kind, 0, exchange.space(1, kind, 0, 8).fill_(1)))
    for _ in exchange.outgoing[1].copy():
        assert list(exchange.finished()) == []
        exchange.has_left(1)
    (chunk,) = exchange.finished()
    assert chunk.tolist() == [1, 1, 1, 1]
    assert not exchange.is_over
