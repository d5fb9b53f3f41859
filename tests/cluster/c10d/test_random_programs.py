"""Random sequences of torch's collectives on several ranks, against numpy.

Every rank draws the same program: operators, dtypes, sizes (none among them), layouts, sub-groups,
roots; each waits for what it has begun when it likes. numpy computes from the ranks' tensors what
each is to get.
"""

from __future__ import annotations

import random
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed import HashStore

from lockstitch.c10d.flight_recorder import GroupLabel
from lockstitch.c10d.process_group import ProcessGroup
from tests.cluster.collectives.ranks import Ranks, in_threads

if TYPE_CHECKING:
    from collections.abc import Callable

OP = distributed.ReduceOp
NUMBERS = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.complex64]
DTYPES = [*NUMBERS, torch.bool]
FOLDS: dict[Any, Any] = {
    OP.SUM: np.add,
    OP.PRODUCT: np.multiply,
    OP.MIN: np.minimum,
    OP.MAX: np.maximum,
    OP.BAND: np.bitwise_and,
    OP.BOR: np.bitwise_or,
    OP.BXOR: np.bitwise_xor,
}
LARGE = 70_000
Parts = list[np.ndarray]


def operators(dtype: torch.dtype) -> list[Any]:
    """Those that torch has for a dtype."""
    if dtype.is_complex:
        return [OP.SUM, OP.PRODUCT]
    if dtype is torch.bool:
        return [OP.BAND, OP.BOR, OP.BXOR, OP.MIN, OP.MAX]
    if dtype.is_floating_point:
        return [OP.SUM, OP.PRODUCT, OP.MIN, OP.MAX]
    return list(FOLDS)


def in_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy; bfloat16, which numpy lacks, as float32, in which small integers are exact too."""
    plain = tensor.detach().resolve_conj().resolve_neg().clone()
    wide = plain.float() if plain.dtype is torch.bfloat16 else plain
    return wide.numpy()


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in memory of another layout."""
    if layout == "contiguous":
        return values.clone()
    if layout == "strided":
        roomy = torch.zeros(values.shape[0], 2 * values.shape[1], dtype=values.dtype)
        view = roomy[:, ::2]
    else:
        view = torch.zeros(values.shape[1], values.shape[0], dtype=values.dtype).t()
    view.copy_(values)
    return view


class Draw:
    """One operation, drawn alike on all ranks."""

    def __init__(self, source: random.Random, size: int) -> None:
        self.kind = source.choice(KINDS)
        self.dtype = source.choice(DTYPES)
        self.op = source.choice(operators(self.dtype))
        self.root = source.randrange(size)
        self.rows = source.choice([0, 1, 2, 5, LARGE if self.dtype is torch.float32 else 40])
        self.layout = source.choice(["contiguous", "strided", "transposed"])
        self.counts = [source.choice([0, 1, 3]) for _ in range(size)]
        self.seed = source.randrange(1 << 30)
        self.is_asynchronous = source.random() < 0.6
        self.size = size

    def __repr__(self) -> str:
        return f"<{self.kind.__name__} · {vars(self)}>"

    def values(self, rank: int, rows: int, number: int = 0) -> torch.Tensor:
        """Small whole numbers: sums and products of them are exact in every dtype."""
        generator = torch.Generator().manual_seed(self.seed + 31 * rank + 977 * number)
        drawn = torch.randint(1, 3, (rows, 3), generator=generator)
        if self.dtype.is_complex:
            return torch.complex(drawn.float(), drawn.flip(0).float())
        return (drawn == 1) if self.dtype is torch.bool else drawn.to(self.dtype)

    def empty(self, rows: int, layout: str = "") -> torch.Tensor:
        return laid_out(torch.zeros(rows, 3, dtype=self.dtype), layout or self.layout)

    def options(self) -> Any:
        return SimpleNamespace(
            reduceOp=self.op,
            rootRank=self.root,
            asyncOp=self.is_asynchronous,
            timeout=timedelta(0),
        )

    def folded(self, parts: Parts) -> np.ndarray:
        result = parts[0]
        for part in parts[1:]:
            result = FOLDS[self.op](result, part)
        return result


Begun = tuple[Any, list[torch.Tensor], Parts]
"""The work, the tensors that it writes, and what is to stand there."""


def all_reduce(draw: Draw, group: Any, rank: int) -> Begun:
    mine = laid_out(draw.values(rank, draw.rows), draw.layout)
    expected = draw.folded([in_numpy(draw.values(each, draw.rows)) for each in range(draw.size)])
    return group.allreduce([mine], draw.options()), [mine], [expected]


def all_reduce_together(draw: Draw, group: Any, rank: int) -> Begun:
    rows = [draw.rows, 1, 0]
    mine = [laid_out(draw.values(rank, n, at), draw.layout) for at, n in enumerate(rows)]
    expected = [
        draw.folded([in_numpy(draw.values(each, n, at)) for each in range(draw.size)])
        for at, n in enumerate(rows)
    ]
    return group.allreduce_coalesced(mine, draw.options()), mine, expected


def all_reduce_entangled(draw: Draw, group: Any, rank: int) -> Begun:
    """One tensor twice, and others that overlap it."""
    rows = draw.rows + 2
    mine = laid_out(draw.values(rank, rows), draw.layout)
    half = rows // 2
    together = [mine, mine, mine[:half], mine[half - 1 :], mine[:0]]
    expected = draw.folded([in_numpy(draw.values(each, rows)) for each in range(draw.size)])
    return group.allreduce_coalesced(together, draw.options()), [mine], [expected]


def broadcast(draw: Draw, group: Any, rank: int) -> Begun:
    mine = laid_out(draw.values(rank, draw.rows), draw.layout)
    expected = in_numpy(draw.values(draw.root, draw.rows))
    return group.broadcast([mine], draw.options()), [mine], [expected]


def reduce(draw: Draw, group: Any, rank: int) -> Begun:
    mine = laid_out(draw.values(rank, draw.rows), draw.layout)
    parts = [in_numpy(draw.values(each, draw.rows)) for each in range(draw.size)]
    expected = draw.folded(parts) if rank == draw.root else parts[rank]
    return group.reduce([mine], draw.options()), [mine], [expected]


def all_gather_unevenly(draw: Draw, group: Any, rank: int) -> Begun:
    pieces = [draw.empty(count) for count in draw.counts]
    expected = [in_numpy(draw.values(by, count)) for by, count in enumerate(draw.counts)]
    work = group.allgather([pieces], [draw.values(rank, draw.counts[rank])], draw.options())
    return work, pieces, expected


def all_gather_in_place(draw: Draw, group: Any, rank: int) -> Begun:
    """Each rank's input is its piece of the output."""
    whole = draw.empty(draw.rows * draw.size, "contiguous")
    mine = whole[rank * draw.rows : (rank + 1) * draw.rows]
    mine.copy_(draw.values(rank, draw.rows))
    parts = [in_numpy(draw.values(each, draw.rows)) for each in range(draw.size)]
    return group.all_gather_single(whole, mine, draw.options()), [whole], [np.concatenate(parts)]


def gather(draw: Draw, group: Any, rank: int) -> Begun:
    given = laid_out(draw.values(rank, draw.rows), draw.layout)
    pieces = [draw.empty(draw.rows) for _ in range(draw.size)] if rank == draw.root else []
    parts = [in_numpy(draw.values(each, draw.rows)) for each in range(draw.size)]
    work = group.gather([pieces] if pieces else [], [given], draw.options())
    return work, pieces, parts if pieces else []


def scatter(draw: Draw, group: Any, rank: int) -> Begun:
    mine = draw.empty(draw.rows)
    given = [draw.values(draw.root, draw.rows, to) for to in range(draw.size)]
    work = group.scatter([mine], [given] if rank == draw.root else [], draw.options())
    return work, [mine], [in_numpy(given[rank])]


def reduce_scatter_unevenly(draw: Draw, group: Any, rank: int) -> Begun:
    mine = draw.empty(draw.counts[rank])
    given = [draw.values(rank, count, to) for to, count in enumerate(draw.counts)]
    parts = [in_numpy(draw.values(by, draw.counts[rank], rank)) for by in range(draw.size)]
    return group.reduce_scatter([mine], [given], draw.options()), [mine], [draw.folded(parts)]


def reduce_scatter_in_place(draw: Draw, group: Any, rank: int) -> Begun:
    """Each rank's output is a part of its input, and not even its own."""
    given = draw.values(rank, draw.rows * draw.size)
    to = (rank + 1) % draw.size
    mine = given[to * draw.rows : (to + 1) * draw.rows]
    wholes = [in_numpy(draw.values(each, draw.rows * draw.size)) for each in range(draw.size)]
    parts = [whole[rank * draw.rows : (rank + 1) * draw.rows] for whole in wholes]
    work = group.reduce_scatter_single(mine, given, draw.options())
    return work, [mine], [draw.folded(parts)]


def all_to_all(draw: Draw, group: Any, rank: int) -> Begun:
    pieces = [draw.empty(draw.counts[rank]) for _ in range(draw.size)]
    given = [draw.values(rank, count, to) for to, count in enumerate(draw.counts)]
    expected = [in_numpy(draw.values(by, draw.counts[rank], rank)) for by in range(draw.size)]
    return group.alltoall(pieces, given, draw.options()), pieces, expected


def all_to_all_in_place(draw: Draw, group: Any, rank: int) -> Begun:
    mine = draw.values(rank, draw.rows * draw.size)
    wholes = [in_numpy(draw.values(each, draw.rows * draw.size)) for each in range(draw.size)]
    parts = [whole[rank * draw.rows : (rank + 1) * draw.rows] for whole in wholes]
    work = group.alltoall_base(mine, mine, [], [], draw.options())
    return work, [mine], [np.concatenate(parts)]


KINDS: list[Callable[[Draw, Any, int], Begun]] = [
    all_reduce,
    all_reduce_together,
    all_reduce_entangled,
    broadcast,
    reduce,
    all_gather_unevenly,
    all_gather_in_place,
    gather,
    scatter,
    reduce_scatter_unevenly,
    reduce_scatter_in_place,
    all_to_all,
    all_to_all_in_place,
]


def check(draw: Draw, begun: Begun, own: random.Random) -> None:
    work, tensors, expected = begun
    if work is not None:  # as torch has it where the options say that somebody waits for it
        work.wait() if own.random() < 0.7 else work.get_future().wait()
    else:
        assert not draw.is_asynchronous
    assert len(tensors) == len(expected)
    for tensor, values in zip(tensors, expected, strict=True):
        found = in_numpy(tensor)
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values, repr(draw))


def run(group: Any, rank: int, draws: list[Draw]) -> None:
    """Begins all in order, and waits for each at once or later, in an order of this rank's own."""
    own = random.Random(rank)
    pending: list[tuple[Draw, Begun]] = []
    for draw in draws:
        pending.append((draw, draw.kind(draw, group, rank)))
        if not draw.is_asynchronous:
            check(*pending.pop(), own)
        while pending and own.random() < 0.4:
            check(*pending.pop(own.randrange(len(pending))), own)
    for draw, begun in pending:
        check(draw, begun, own)
    group.barrier().wait()  # nobody leaves while another one is still at work


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "backend",
    ["memory", "shared_memory", "c10d", "hierarchical"],
)
def test_random_collectives_are_those_of_numpy(backend: str, size: int, seed: int) -> None:
    source = random.Random(1000 * size + seed)
    draws = [Draw(source, size) for _ in range(40 if backend == "c10d" else 80)]
    store = HashStore()
    with Ranks(size, backend) as ranks:

        def made(rank: int) -> Any:
            label = GroupLabel(ranks[rank], "random", range(size))
            return ProcessGroup(ranks[rank], label, store, timedelta(seconds=60))

        def work(rank: int) -> None:
            try:
                run(groups[rank], rank, draws)
            except BaseException:
                groups[rank].shutdown()  # so that the others do not wait for it
                raise

        groups = in_threads(size, made)
        try:
            in_threads(size, work)
        finally:
            for group in groups:
                group.shutdown()
