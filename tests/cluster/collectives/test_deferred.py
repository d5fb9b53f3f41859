"""Operations that are only begun by the call that submits them, on the ranks of one host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.collectives import SUM
from lockstitch.collectives.shared_memory.background_driver import BackgroundDriver
from lockstitch.errors import CollectiveError
from tests.cluster.collectives.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 3
_SECONDS = 60


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """No thread looks after anything."""
    monkeypatch.setattr(BackgroundDriver, "look_after", lambda _background: None)
    with Ranks(SIZE, "shared_memory") as running:
        yield running


@pytest.mark.parametrize("count", [1, 600_000])
def test_who_submits_last_does_nothing_yet(ranks: Ranks, count: int) -> None:
    handles = [s.deferred.allreduce(torch.ones(count), SUM, name="x") for s in ranks.sessions]
    assert not any(handle.is_done for handle in handles)
    with pytest.raises(ValueError, match="'x' is in flight on rank 2"):
        ranks[2].deferred.allreduce(torch.ones(count), SUM, name="x")
    results = ranks.run(lambda s: s.wait(handles[s.rank]))
    assert all(result.eq(SIZE).all() for result in results)


def test_later_submissions_go_on_with_it_in_order(ranks: Ranks) -> None:
    first = [s.deferred.allreduce(torch.ones(1), SUM) for s in ranks.sessions]
    second = [s.deferred.allgather(torch.tensor([s.rank])) for s in ranks.sessions]
    third = [s.allreduce(torch.ones(1), SUM) for s in ranks.sessions]
    assert all(handle.is_done for handle in first)
    assert second[2].is_done
    assert third[2].is_done
    assert ranks.run(lambda s: s.wait(second[s.rank]).tolist()) == [[0, 1, 2]] * SIZE
    assert ranks.run(lambda s: s.wait(third[s.rank]).item()) == [SIZE] * SIZE


def test_who_joins_has_submitted_before(ranks: Ranks) -> None:
    def program(session):
        if session.rank == 0:
            handle = session.deferred.allgather(torch.tensor([7]))
            assert session.join() == 2
            return session.wait(handle).tolist()
        gathered = session.wait(session.allgather(torch.tensor([session.rank])))
        while session.rank == 2:  # until the others have joined
            if session.wait(session.allreduce(torch.ones(1), SUM)).item() == 1:
                break
        session.join()
        return gathered.tolist()

    assert ranks.run(program) == [[7, 1, 2]] * SIZE


def test_what_was_only_begun_fails_at_the_end(ranks: Ranks) -> None:
    handle = ranks[0].deferred.allreduce(torch.ones(1), SUM)
    ranks[0].shutdown()
    with pytest.raises(CollectiveError, match="shut down"):
        ranks[0].wait(handle)


def test_a_thread_goes_on_with_it_where_nobody_else_does() -> None:
    with Ranks(2, "shared_memory") as running:
        handles = [s.deferred.allreduce(torch.ones(1), SUM) for s in running.sessions]
        assert all(handle.wait(_SECONDS) for handle in handles)


def test_no_thread_looks_after_what_is_waited_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[BackgroundDriver] = []
    monkeypatch.setattr(BackgroundDriver, "look_after", called.append)

    def program(session):
        session.barrier()
        return session.wait(session.awaited.allreduce(torch.ones(1), SUM)).item()

    with Ranks(SIZE, "shared_memory") as running:
        assert running.run(program) == [SIZE] * SIZE
    assert not called
