"""Large tensors that are gathered, broadcast, exchanged or reduced into parts, in rounds: against
plain torch, over the memory of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.collectives import AVERAGE, SUM, Kind, ReduceOp, Reduction, Request
from lockstitch.errors import MismatchError, RankLostError
from tests.cluster.collectives.ranks import Ranks
from tests.cluster.collectives.shared_memory.conftest import SIZES

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives import Session

pytestmark = pytest.mark.usefixtures("short_chunks")

LARGE = 270_001
"""Elements of float32: more than a ring, and no whole number of chunks."""


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Here the sessions live as long as the module."""


def numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers that differ between ranks and places, small enough to be exact."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + rank * 5) % 11).view(shape).to(dtype)


def submit(session: Session, kind: Kind, *tensors: torch.Tensor, **more: object) -> list:
    request = Request(kind, queue="q", tensors=tensors, is_group=True, **more)  # type: ignore[arg-type]
    return session.wait(session.submit(request))


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# ---------------------------------------------------------------- what each kind gives

DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast_of_large_tensor(ranks: Ranks, dtype: torch.dtype) -> None:
    count = 1_200_003 // dtype.itemsize

    def work(session: Session) -> None:
        for root in (0, session.size - 1):
            mine = numbers(session.rank, (count,), dtype)
            same(session.wait(session.broadcast(mine, root)), numbers(root, (count,), dtype))
            same(mine, numbers(session.rank, (count,), dtype))
            session.wait(session.broadcast(mine, root, output=mine))
            same(mine, numbers(root, (count,), dtype))

    ranks.run(work)


def test_broadcast_from_and_into_tensors_that_are_not_contiguous(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        mine = numbers(session.rank, (600, 601)).t()
        session.wait(session.broadcast(mine, 1, output=mine))
        same(mine, numbers(1, (600, 601)).t())

    ranks.run(work)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allgather_of_parts_of_any_size(ranks: Ranks, dtype: torch.dtype) -> None:
    """One is large, one small, one in between, one empty."""
    rows = [400_001, 3, 30_000, 0]
    rows = [each * 4 // dtype.itemsize // 3 for each in rows[: ranks.size]]

    def work(session: Session) -> None:
        shape = (rows[session.rank], 3)
        found = session.wait(session.allgather(numbers(session.rank, shape, dtype)))
        same(found, torch.cat([numbers(i, (each, 3), dtype) for i, each in enumerate(rows)]))

    ranks.run(work)


def test_allgather_in_place_and_from_amidst_the_outputs(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        rank, size = session.rank, session.size
        expected = torch.cat([numbers(each, (LARGE,)) for each in range(size)])
        whole = torch.zeros(size * LARGE)
        mine = whole[rank * LARGE : (rank + 1) * LARGE].copy_(numbers(rank, (LARGE,)))
        submit(session, Kind.ALLGATHER, mine, outputs=whole.view(size, LARGE).unbind())
        same(whole, expected)
        # Where the tensor lies, pieces of others are written before all of it is read.
        elsewhere = LARGE // 2
        mine = whole[elsewhere : elsewhere + LARGE].copy_(numbers(rank, (LARGE,)))
        submit(session, Kind.ALLGATHER, mine, outputs=whole.view(size, LARGE).unbind())
        same(whole, expected)

    ranks.run(work)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alltoall_of_uneven_shares(ranks: Ranks, dtype: torch.dtype) -> None:
    size = ranks.size
    unit = 60_000 // dtype.itemsize
    splits = [[(i * 3 + j * 5) % 4 * unit * 2 + i for j in range(size)] for i in range(size)]

    def pieces(giver: int) -> list[torch.Tensor]:
        whole = numbers(giver, (sum(splits[giver]), 2), dtype)
        return list(torch.split(whole, splits[giver]))

    def work(session: Session) -> None:
        given = torch.cat(pieces(session.rank))
        found, rows = session.wait(session.alltoall(given, splits[session.rank]))
        same(found, torch.cat([pieces(each)[session.rank] for each in range(size)]))
        assert rows.tolist() == [splits[each][session.rank] for each in range(size)]
        # In place, as far as the sizes allow.
        even = numbers(session.rank, (size, LARGE)).flatten()
        share = tuple([LARGE] * size)
        outputs = even.view(size, LARGE).unbind()
        submit(session, Kind.ALLTOALL, even, splits=share, outputs=outputs)
        for giver in range(size):
            same(outputs[giver], numbers(giver, (size, LARGE))[session.rank])

    ranks.run(work)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", [SUM, AVERAGE, Reduction(ReduceOp.SUM, 3.0, 0.5)], ids=str)
def test_reducescatter_adds_in_the_order_of_ranks(
    ranks: Ranks, dtype: torch.dtype, reduction: Reduction
) -> None:
    size, rows = ranks.size, 900_001 // dtype.itemsize
    if dtype is torch.uint8:
        pytest.skip("the sums would not fit")

    def expected() -> torch.Tensor:
        total = numbers(0, (rows, 2), dtype) * reduction.prescale
        for each in range(1, size):
            total += numbers(each, (rows, 2), dtype) * reduction.prescale
        if reduction.op is ReduceOp.AVERAGE:
            total /= size
        return total * reduction.postscale

    def work(session: Session) -> torch.Tensor:
        mine = numbers(session.rank, (rows, 2), dtype)
        result = session.wait(session.reducescatter(mine, reduction))
        same(mine, numbers(session.rank, (rows, 2), dtype))
        return result

    same(torch.cat(ranks.run(work)), expected())


def test_sums_are_rounded_as_those_of_an_allreduce(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        generator = torch.Generator().manual_seed(session.rank)
        mine = torch.randn(LARGE * session.size, generator=generator)
        part = session.wait(session.reducescatter(mine, SUM))
        total = session.wait(session.allreduce(mine, SUM))
        same(part, total.chunk(session.size)[session.rank])

    ranks.run(work)


def test_reducescatter_into_the_tensor_itself(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        size = session.size
        total = sum(numbers(each, (size * LARGE,)) for each in range(size))
        for place in (session.rank, (session.rank + 1) % size):
            mine = numbers(session.rank, (size * LARGE,))
            out = mine[place * LARGE : (place + 1) * LARGE]
            submit(session, Kind.REDUCESCATTER, mine, outputs=(out,), reduction=SUM)
            same(out, total.view(size, LARGE)[session.rank])  # type: ignore[union-attr]

    ranks.run(work)


def test_memory_that_ranks_share_is_read_before_it_is_written(ranks: Ranks) -> None:
    size = ranks.size
    page = torch.zeros(size * LARGE).share_memory_()
    page.view(size, LARGE).copy_(torch.stack([numbers(each, (LARGE,)) for each in range(size)]))

    def work(session: Session) -> None:
        # Each gives what lies where others write.
        mine = page.view(size, LARGE)[(session.rank + 1) % size]
        submit(session, Kind.ALLGATHER, mine, outputs=page.view(size, LARGE).unbind())

    ranks.run(work)
    same(page, torch.cat([numbers((each + 1) % size, (LARGE,)) for each in range(size)]))


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_random_exchanges(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(SIZES))
    counts = st.sampled_from([0, 1, 16_383, 16_384, 16_385, 262_144, 262_145, 300_000])
    rows = data.draw(st.lists(st.lists(counts, min_size=size, max_size=size), min_size=3))
    with Ranks(size, "shared_memory") as ranks:

        def work(session: Session) -> None:
            handles = []
            for turn, splits in enumerate(rows):
                mine = splits[session.rank :] + splits[: session.rank]
                given = numbers(session.rank + turn, (sum(mine),))
                handles.append(session.alltoall(given, mine))
                handles.append(session.allgather(given[: splits[session.rank]]))
            for turn, splits in enumerate(rows):
                found, _ = session.wait(handles[2 * turn])
                expected = []
                for giver in range(size):
                    theirs = splits[giver:] + splits[:giver]
                    given = numbers(giver + turn, (sum(theirs),))
                    expected.append(torch.split(given, theirs)[session.rank])
                same(found, torch.cat(expected))
                gathered = session.wait(handles[2 * turn + 1])
                same(gathered, torch.cat([numbers(g + turn, (splits[g],)) for g in range(size)]))

        ranks.run(work)


# ---------------------------------------------------------------- what goes wrong


def test_who_expects_another_number_of_elements_alone_is_told(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        size = session.size
        mine = numbers(session.rank, (LARGE,))
        wrong = int(session.rank == 1)
        outputs = tuple(torch.zeros(LARGE - wrong) for _ in range(size))
        submit(session, Kind.ALLGATHER, mine, outputs=outputs)

    def again(session: Session) -> float:
        return float(session.wait(session.allreduce(torch.ones(1), SUM)))

    errors = ranks.errors(work)
    assert [type(each) for each in errors] == [
        MismatchError if rank == 1 else type(None) for rank in range(ranks.size)
    ]
    assert ranks.run(again) == [float(ranks.size)] * ranks.size


@pytest.mark.parametrize("kind", ["broadcast", "allgather", "alltoall", "reducescatter"])
def test_who_waits_for_a_rank_that_leaves_is_told(kind: str) -> None:
    operations: dict[str, Callable[[Session, torch.Tensor], object]] = {
        "broadcast": lambda session, tensor: session.broadcast(tensor, 1),
        "allgather": lambda session, tensor: session.allgather(tensor),
        "alltoall": lambda session, tensor: session.alltoall(tensor),
        "reducescatter": lambda session, tensor: session.reducescatter(tensor),
    }
    with Ranks(3, "shared_memory") as ranks:

        def work(session: Session) -> None:
            handle = operations[kind](session, torch.zeros(3 * LARGE))
            if session.rank == 1:
                session.shutdown()  # its first chunks are there
            session.wait(handle)  # type: ignore[arg-type]

        errors = ranks.errors(work)
    assert all(isinstance(errors[rank], RankLostError) for rank in (0, 2)), errors
