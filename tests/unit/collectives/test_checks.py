"""What is refused before anybody is asked. The sessions' tests go through all of it."""

from __future__ import annotations

import pytest
import torch

from lockstitch.collectives.checks import check, check_outputs
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.requests import SUM, Kind, Request


def test_sensible_request_passes() -> None:
    check(Request(Kind.ALLGATHER, "a", (torch.ones(1),)), ProcessSet(0, (0, 1)), 1)


def test_rank_outside_the_set_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is not in process set 1"):
        check(Request(Kind.BARRIER, "a"), ProcessSet(1, (0, 1)), 2)


def test_unnamed_request_is_told_by_its_kind() -> None:
    with pytest.raises(ValueError, match="a nameless allgather: allgather works on rows"):
        check(Request(Kind.ALLGATHER, tensors=(torch.tensor(1),)), ProcessSet(0, (0,)), 0)


@pytest.mark.parametrize("outputs", [(), (torch.ones(3),), (torch.ones(2).int(),)])
def test_outputs_must_fit(outputs: tuple[torch.Tensor, ...]) -> None:
    request = Request(Kind.ALLREDUCE, "a", (torch.ones(2),), outputs, SUM)
    with pytest.raises(ValueError, match="output"):
        check_outputs(request)
