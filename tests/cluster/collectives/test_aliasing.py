"""Tensors of one operation that lie in the same memory, also large ones, which go in chunks."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives import SUM, Session
from tests.cluster.collectives.ranks import BACKENDS, Ranks

SIZE = 2
LARGE = 1_000_000


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [6, LARGE])
def test_every_result_is_that_of_the_values_that_were_submitted(backend: str, count: int) -> None:
    def work(session: Session) -> torch.Tensor:
        mine = torch.arange(float(count))
        parts = [mine, mine, mine[: count // 2], mine[count // 2 - 1 :]]
        session.wait(session.grouped_allreduce(parts, SUM, name="group", outputs=parts))
        beside = torch.arange(float(count))
        handle = session.allreduce(beside[:-1], SUM, name="beside", output=beside[1:])
        session.wait(handle)
        return torch.stack([mine, beside])

    whole = SIZE * torch.arange(float(count))
    with Ranks(SIZE, backend) as ranks:
        for mine, beside in ranks.run(work):
            assert torch.equal(mine, whole)
            assert torch.equal(beside[1:], whole[:-1])


@pytest.mark.parametrize("count", [6, LARGE])
def test_output_of_repeated_elements_is_refused_and_the_session_goes_on(count: int) -> None:
    def work(session: Session) -> float:
        same = torch.ones(1).expand(count)
        with pytest.raises(ValueError, match="the same memory for several elements"):
            session.allreduce(same, SUM, name="x", output=same)
        with pytest.raises(ValueError, match="the same memory for several elements"):
            session.broadcast(torch.ones(count), 0, name="x", output=same)
        return float(session.wait(session.allreduce(same, SUM, name="x")).mean())

    with Ranks(2, "shared_memory") as ranks:
        assert ranks.run(work) == [2.0, 2.0]
