"""What is submitted again and again: by one handle, if nothing speaks against it."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives import SUM, Kind, ReduceOp, Request, request_cache
from lockstitch.errors import CollectiveError, RankLostError
from tests.cluster.collectives.mixtures import folded, values
from tests.cluster.collectives.ranks import BACKENDS, Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.collectives import Session
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.repeated import Repeated


def first(session: Session, seed: int = 0) -> Repeated:
    mine = (values(session.rank, seed),)
    handle = session.submit(
        Request(Kind.ALLREDUCE, "", mine, mine, SUM, is_awaited=True, queue="q")
    )
    session.wait(handle)
    return session.repeated(handle)


def begun(repeated: Repeated, tensor: torch.Tensor) -> Handle[Any]:
    handle = repeated.next(tensor)
    assert handle is not None
    assert repeated.begin(handle)
    return handle


@pytest.mark.parametrize("backend", BACKENDS)
def test_gives_what_any_other_would(backend: str) -> None:
    with Ranks(3, backend) as ranks:

        def run(session: Session) -> None:
            repeated = first(session)
            handles = set()
            for seed in range(1, 40):
                mine = values(session.rank, seed)
                handle = begun(repeated, mine)
                handles.add(handle)
                repeated.perform(handle)
                repeated.keep(handle)
                wanted = folded([values(rank, seed) for rank in range(3)], ReduceOp.SUM, 3)
                assert torch.equal(mine, wanted)
            assert len(handles) == 1
            counts = session.statistics()
            assert counts.submitted == counts.completed == 40
            assert counts.tensor_bytes == 40 * 200
            assert not counts.under_way

        ranks.run(run)


def test_nothing_is_kept() -> None:
    with Ranks(1, "shared_memory") as ranks:
        repeated = first(ranks[0])
        mine = values(0, 1)
        kept = weakref.ref(mine)
        handle = begun(repeated, mine)
        repeated.perform(handle)
        repeated.keep(handle)
        del mine
        gc.collect()
        assert kept() is None


UNUSUAL: dict[str, Callable[[], Any]] = {
    "a number": lambda: 5,
    "a parameter": lambda: torch.nn.Parameter(torch.ones(50)),
    "wants gradients": lambda: torch.ones(50, requires_grad=True),
    "in pieces": lambda: torch.ones(50, 2)[:, 0],
    "sparse": lambda: torch.ones(50).to_sparse(),
    "shared": lambda: torch.ones(50).share_memory_(),
    "meta": lambda: torch.ones(50, device="meta"),
    "of inference": lambda: torch.inference_mode()(torch.ones)(50),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_unusual_is_for_others(kind: str) -> None:
    with Ranks(1, "shared_memory") as ranks:
        assert first(ranks[0]).next(UNUSUAL[kind]()) is None


def test_whatever_else_is_under_way_or_looks_on_is_for_others() -> None:
    with Ranks(2, "shared_memory") as ranks:
        session = ranks[0]
        repeated = ranks.run(first)[0]
        other = session.allreduce(torch.ones(2), SUM, name="other")
        assert repeated.next(torch.ones(50)) is None
        session.wait(ranks[1].allreduce(torch.ones(2), SUM, name="other") and other)
        session.observers.progress = lambda _: None
        assert repeated.next(torch.ones(50)) is None
        session.observers.progress = None
        with torch.inference_mode():
            assert repeated.next(torch.ones(50)) is None
        assert session.statistics().under_way == 0


def test_who_is_late_and_who_is_lost_are_told_of() -> None:
    with Ranks(2, "shared_memory") as ranks:
        repeated = ranks.run(first)[0]
        handle = begun(repeated, torch.ones(50))
        ranks[0]._backend.submit(handle)
        assert ranks[0].missing(handle) == (1,)
        ranks[1]._backend._sets.end(RankLostError("rank 1 died"))
        with pytest.raises(RankLostError, match="rank 1 died"):
            repeated.perform(handle)
        assert repeated.next(torch.ones(50)) is None
        with pytest.raises(CollectiveError, match="rank 1 died"):
            repeated.begin(handle)
        assert not len(ranks[0]._pending)


def test_an_interrupt_before_others_know_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks(2, "shared_memory") as ranks:
        repeated = ranks.run(first)[0]
        handle = begun(repeated, torch.ones(50))

        def interrupted(_handle: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(ranks[0]._backend, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt) as struck:
                repeated.perform(handle)
            repeated.withdraw(handle, struck.value)
        assert not ranks[0].statistics().under_way
        again = begun(repeated, torch.ones(50))
        assert again is not handle
        ranks[0]._pending.fail(again, CollectiveError("enough"))


def test_who_is_not_the_first_to_begin_does_nothing() -> None:
    with Ranks(2, "shared_memory") as ranks:
        repeated = ranks.run(first)[0]
        mine = [repeated.next(torch.ones(50)), repeated.next(torch.ones(50))]
        assert mine[0] is not None
        assert mine[1] is not None
        assert repeated.begin(mine[1])
        assert not repeated.begin(mine[0])
        assert ranks[0].statistics().under_way == 1
        ranks[0]._pending.fail(mine[1], CollectiveError("enough"))


def test_a_number_that_may_stand_for_another_name_is_not_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_cache, "MOST_CACHED", 3)
    with Ranks(1, "shared_memory") as ranks:
        repeated = first(ranks[0])
        assert not repeated.is_forgotten
        for name in "abcd":
            ranks[0].wait(ranks[0].allreduce(torch.ones(2), SUM, name=name))
        assert repeated.is_forgotten
        handle = repeated.next(torch.ones(50))
        assert handle is not None
        assert not repeated.begin(handle)
