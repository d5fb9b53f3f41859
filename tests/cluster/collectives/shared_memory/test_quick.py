"""What is done in place again and again: in few steps, and in no others where something differs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives import AVERAGE, SUM, Observers, ReduceOp, Step
from lockstitch.collectives.shared_memory.quick import Quick
from tests.cluster.collectives.mixtures import folded, values
from tests.cluster.collectives.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstitch.collectives import Handle, Reduction, Session


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, "shared_memory") as ranks:
        yield ranks


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What has come to its end in few steps, of all ranks."""
    found: list[object] = []
    end = Quick.end

    def ended(quick: Quick, shortcut: Any) -> torch.Tensor | None:
        out = end(quick, shortcut)
        if out is not None:
            found.append(out)
        return out

    monkeypatch.setattr(Quick, "end", ended)
    return found


def all_do(
    ranks: Ranks,
    seed: int,
    tensors: list[torch.Tensor] | None = None,
    reduction: Reduction = SUM,
    name: str = "x",
) -> None:
    """One operation of all ranks, in place and in this thread."""
    mine = tensors or [values(rank, seed) for rank in range(ranks.size)]
    wanted = folded([each.clone() for each in mine], reduction.op, ranks.size)
    handles = [
        session.awaited.allreduce(each, reduction, name=name, output=each)
        for session, each in zip(ranks.sessions, mine, strict=True)
    ]
    versions = [each._version for each in mine[:-1]]
    for session, handle, each in zip(ranks.sessions, handles, mine, strict=True):
        assert session.wait(handle) is each
        assert torch.equal(each, wanted)
    assert all(each._version > before for each, before in zip(mine[:-1], versions, strict=True))


@pytest.mark.parametrize("reduction", [SUM, AVERAGE], ids=str)
def test_what_comes_again_is_done_in_few_steps(
    ranks: Ranks, ends: list[object], reduction: Reduction
) -> None:
    for seed in range(2):
        all_do(ranks, seed, reduction=reduction)
    for seed in range(2, 90):  # more than a lane has places
        all_do(ranks, seed, reduction=reduction)
    assert len(ends) == 88 * ranks.size


@pytest.mark.parametrize("is_given", [False, True])
def test_nothing_is_written_beyond_a_tensor_that_has_become_smaller(is_given: bool) -> None:
    def begin(session: Session, tensor: torch.Tensor) -> Handle[torch.Tensor]:
        if is_given:
            return session.broadcast(tensor, 1, name="x", output=tensor)
        return session.allreduce(tensor, SUM, name="x", output=tensor)

    with Ranks(3, "shared_memory") as ranks:
        for seed in range(9):
            tensors = [values(rank, seed) for rank in range(3)]
            handles = [begin(*each) for each in zip(ranks.sessions, tensors, strict=True)]
            if seed == 8:
                memory = torch.zeros(4096)
                tensors[0].data = memory[:3]
                is_too_late = handles[0].is_done  # a thread that looks after it was quicker
            for session, handle in list(zip(ranks.sessions, handles, strict=True))[1:]:
                session.wait(handle)
            if seed < 8:
                ranks[0].wait(handles[0])
        expected = pytest.raises(RuntimeError, match="must match")
        with contextlib.nullcontext() if is_too_late else expected:
            ranks[0].wait(handles[0])
        assert not memory.any()


def all_broadcast(
    ranks: Ranks, root: int, tensors: list[torch.Tensor], name: str = "given"
) -> None:
    """The same of the tensor of one of them."""
    wanted = tensors[root].clone()
    versions = [each._version for each in tensors]
    handles = [
        session.awaited.broadcast(each, root, name=f"{name} {root}", output=each)
        for session, each in zip(ranks.sessions, tensors, strict=True)
    ]
    for session, handle, each in zip(ranks.sessions, handles, tensors, strict=True):
        assert session.wait(handle) is each
        assert torch.equal(each, wanted)
    changed = [each._version > old for each, old in zip(tensors, versions, strict=True)]
    assert changed == [rank != root for rank in range(ranks.size)]


def test_what_is_given_again_and_again_too(ranks: Ranks, ends: list[object]) -> None:
    for seed in range(90):
        for root in range(ranks.size):
            all_broadcast(ranks, root, [values(rank, seed) for rank in range(ranks.size)])
    assert len(ends) >= 88 * ranks.size**2


@pytest.mark.parametrize("count", [0, 1, 2000, 16_384])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.uint8, torch.complex64])
def test_any_size_and_dtype_can_be_given(ranks: Ranks, dtype: torch.dtype, count: int) -> None:
    for seed in range(6):
        source = torch.Generator().manual_seed(seed)
        parts = [torch.randint(0, 2, (count,), generator=source).to(dtype) for _ in ranks.sessions]
        if count:
            all_broadcast(ranks, 1, parts)
        negative = [torch._neg_view(values(rank, seed)) for rank in range(ranks.size)]
        all_broadcast(ranks, 0, negative, "negative")


def test_a_new_name_is_learnt_and_so_are_the_old_ones_anew(
    ranks: Ranks, ends: list[object]
) -> None:
    for seed in range(4):
        all_do(ranks, seed)
    all_do(ranks, 4, name="y")
    assert len(ends) == 2 * ranks.size
    all_do(ranks, 5)  # what the words stand for might have changed
    assert len(ends) == 2 * ranks.size
    all_do(ranks, 6)
    assert len(ends) == 3 * ranks.size


@pytest.mark.parametrize("count", [0, 1, 2000, 16_384])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.complex64])
def test_any_size_and_dtype(ranks: Ranks, dtype: torch.dtype, count: int) -> None:
    for seed in range(6):
        source = torch.Generator().manual_seed(seed)
        parts = [torch.randint(0, 9, (count,), generator=source).to(dtype) for _ in ranks.sessions]
        all_do(ranks, seed, parts)


def test_memory_that_bytes_do_not_tell_all_of(ranks: Ranks) -> None:
    for seed in range(3):
        all_do(ranks, seed)
    for seed in range(3):
        all_do(
            ranks,
            seed,
            [torch.stack([v, v], -1)[:, 0] for v in map(lone(seed), range(3))][: ranks.size],
        )
        negative = [torch._neg_view(values(rank, seed)) for rank in range(ranks.size)]
        all_do(ranks, seed, negative)
        views = [values(rank, seed, 80)[30:] for rank in range(ranks.size)]
        all_do(ranks, seed, views)


def lone(seed: int) -> Any:
    return lambda rank: values(rank, seed)


def test_who_looks_on_is_told_all_steps(ranks: Ranks) -> None:
    for seed in range(3):
        all_do(ranks, seed)
    told: list[Step] = []
    ranks[0].observers.progress = lambda progress: told.append(progress.step)
    all_do(ranks, 3)
    assert told == [Step.SUBMITTED, Step.READY, Step.DONE]
    assert isinstance(ranks[0].observers, Observers)


def test_ranks_whose_lanes_differ_still_meet(ranks: Ranks, ends: list[object]) -> None:
    for seed in range(3):
        all_do(ranks, seed)
    for seed in range(3, 6):
        mine = [values(rank, seed) for rank in range(ranks.size)]
        large = [values(rank, seed, 300_000) for rank in range(ranks.size)]
        begun: list[list[Any]] = [[] for _ in ranks.sessions]
        for session, handles in zip(ranks.sessions, begun, strict=True):
            ways = [("x", mine), ("large", large)]
            for name, tensors in ways if session.rank else ways[::-1]:  # who is not alone says more
                tensor = tensors[session.rank]
                handles.append(session.awaited.allreduce(tensor, SUM, name=name, output=tensor))
        wanted = folded(
            [values(rank, seed) for rank in range(ranks.size)], ReduceOp.SUM, ranks.size
        )
        ranks.run(lambda session, begun=begun: [session.wait(each) for each in begun[session.rank]])
        assert all(torch.equal(each, wanted) for each in mine)
        ends.clear()
        for later in range(10, 80):
            all_do(ranks, later)
        assert len(ends) >= 69 * ranks.size


def test_names_that_cross_each_other(ranks: Ranks) -> None:
    for seed in range(3):
        for name in ("x", "y"):
            all_do(ranks, seed, name=name)
    for seed in range(3, 8):
        mine = {
            name: [values(rank, seed + at) for rank in range(ranks.size)]
            for at, name in enumerate("xy")
        }
        handles = [
            (session, session.awaited.allreduce(tensor, SUM, name=name, output=tensor))
            for session in ranks.sessions
            for name in ("xy" if session.rank else "yx")
            for tensor in [mine[name][session.rank]]
        ]
        for session, handle in handles:
            session.wait(handle)
        for at, name in enumerate("xy"):
            parts = [values(rank, seed + at) for rank in range(ranks.size)]
            wanted = folded(parts, ReduceOp.SUM, ranks.size)
            assert all(torch.equal(each, wanted) for each in mine[name])


def test_threads_and_sets_in_between(ranks: Ranks) -> None:
    def run(session: Session) -> None:
        for seed in range(60):
            mine = values(session.rank, seed)
            session.wait(session.awaited.allreduce(mine, SUM, name="x", output=mine))
            wanted = folded([values(r, seed) for r in range(ranks.size)], ReduceOp.SUM, ranks.size)
            assert torch.equal(mine, wanted)
            if not seed % 7:
                session.barrier()

    ranks.run(run)
