"""What a plane does with process groups is run by `test_session.py`; here, how it connects them."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import HashStore

from lockstitch.collectives import SUM
from lockstitch.collectives.arithmetic import UNSCALED
from lockstitch.collectives.c10d.group_operations import ProcessGroupOperations
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.errors import CollectiveError


def test_ranks_that_do_not_connect_are_told_after_the_time_for_it() -> None:
    groups = ProcessGroupOperations(0, HashStore(), "cpu", connect_seconds=0.1)
    with pytest.raises(
        CollectiveError,
        match=r"rank 0 .* process set 3, \[1\], from host .* within 0.1 s: .* alive",
    ):
        groups.open_set(ProcessSet(3, (0, 1)))
    groups.close()


def test_operations_may_take_longer_than_connecting() -> None:
    groups = ProcessGroupOperations(0, HashStore(), "cpu", seconds=6.0, connect_seconds=0.1)
    alone = ProcessSet(1, (0,))
    groups.open_set(alone)
    assert groups._may_last(torch.ones(3 << 18), 2).total_seconds() == pytest.approx(6 + 6)
    vector = torch.ones(3)
    groups.reduce(vector, SUM.op, UNSCALED, alone)
    assert vector.tolist() == [1.0] * 3
    groups.close_set(alone)
    groups.close()
