"""Parts that ranks send each other before rank 0 has ordered the reduction."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.collectives import AVERAGE, SUM
from lockstitch.collectives.c10d import group_operations
from lockstitch.collectives.requests import ReduceOp, Reduction
from lockstitch.errors import CollectiveError
from tests.cluster.collectives.ranks import Ranks

if TYPE_CHECKING:
    from lockstitch.collectives import Session


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers under which parts went ahead, of all ranks."""
    numbers: list[int] = []
    whole = group_operations.send_ahead

    def send_ahead(line: object, set_id: int, number: int, part: torch.Tensor) -> None:
        numbers.append(number)
        whole(line, set_id, number, part)  # type: ignore[arg-type]

    monkeypatch.setattr(group_operations, "send_ahead", send_ahead)
    return numbers


@pytest.mark.parametrize("size", [2, 3])
def test_what_is_reduced_alone_goes_ahead_from_the_second_time_on(
    size: int, sent: list[int]
) -> None:
    reduction = Reduction(ReduceOp.SUM, prescale=0.5)

    def work(session: Session) -> None:
        for step in range(5):
            tensor = torch.full((40_000,), 2.0 * (session.rank + step))
            total = session.wait(session.allreduce(tensor, reduction, name="w"))
            assert torch.equal(total, torch.full((40_000,), sum(range(step, step + size)) * 1.0))

    with Ranks(size, "c10d") as ranks:
        ranks.run(work)
    assert sorted(set(sent)) == [1, 2, 3, 4]
    assert len(sent) == 4 * size * (size - 1)


def test_parts_of_what_is_refused_are_in_no_later_sum(sent: list[int]) -> None:
    def work(session: Session) -> None:
        for step in range(30):
            wrong = step % 5 == 4
            shape = (500 + session.rank,) if wrong else (30_000,)
            tensor = torch.full(shape, float(10 * step + session.rank))
            if wrong:
                with pytest.raises(CollectiveError, match="rank 1"):
                    session.wait(session.allreduce(tensor, SUM, name="w"))
            else:
                total = session.wait(session.allreduce(tensor, SUM, name="w"))
                assert torch.equal(total, torch.full(shape, 20.0 * step + 1))

    with Ranks(2, "c10d by orders") as two:
        two.run(work)
    assert max(sent) > 12


@pytest.mark.parametrize("seed", range(6))
def test_mixtures_of_what_goes_ahead_and_what_does_not_give_exact_sums(
    seed: int, sent: list[int]
) -> None:
    """Each rank submits in an order of its own, now one by one and now all at once, in sets that
    overlap, and some of it does not fit."""
    size, steps = 3, 25
    plan = random.Random(seed)
    steps_of = [
        (plan.choice(["one", "one", "many", "wrong"]), plan.sample(range(4), 3))
        for _ in range(steps)
    ]

    def value(step: int, name: int, rank: int) -> float:
        return float(100 * step + 10 * name + rank)

    def work(session: Session) -> None:
        chance = random.Random(100 * seed + session.rank)
        pair = session.add_process_set([0, 2])
        for step, (kind, names) in enumerate(steps_of):
            chosen = names[:1] if kind != "many" else chance.sample(names, len(names))
            handles = {}
            for name in chosen:
                ranks = (0, 2) if name == 3 else (0, 1, 2)
                if session.rank not in ranks:
                    continue
                rows = 5000 * (name + 1) + (kind == "wrong" and session.rank == 0)
                tensor = torch.full((rows,), value(step, name, session.rank))
                handles[name] = session.allreduce(
                    tensor, SUM, name=str(name), process_set=pair.id if name == 3 else 0
                )
            for name, handle in handles.items():
                ranks = (0, 2) if name == 3 else (0, 1, 2)
                if kind == "wrong":
                    with pytest.raises(CollectiveError, match="disagree"):
                        session.wait(handle)
                    continue
                wanted = sum(value(step, name, rank) for rank in ranks)
                assert torch.equal(session.wait(handle).unique(), torch.tensor([wanted]))

    with Ranks(size, "c10d by orders") as three:
        three.run(work)
    assert sent


def test_rank_that_joins_has_no_part_though_others_have_sent_ahead(sent: list[int]) -> None:
    def work(session: Session) -> None:
        for step in range(9):
            if session.rank == 2 and step >= 4:
                break
            tensor = torch.full((9000,), float(step + session.rank))
            total = session.wait(session.allreduce(tensor, SUM, name="w"))
            there = range(3) if step < 4 else range(2)
            assert torch.equal(total.unique(), torch.tensor([1.0 * sum(step + r for r in there)]))
        session.join()
        tensor = torch.full((9000,), 1.0)
        assert session.wait(session.allreduce(tensor, AVERAGE, name="w")).unique() == 1.0

    with Ranks(3, "c10d by orders") as three:
        three.run(work)
    assert sent
