"""Rank 0 ends its part of a group in good order, while the others still hold theirs."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from lockstitch.c10d.flight_recorder import GroupLabel
from lockstitch.c10d.process_group import ProcessGroup
from lockstitch.errors import RankLostError
from tests.cluster.collectives.ranks import Ranks, in_threads

if TYPE_CHECKING:
    from collections.abc import Callable


def until(holds: Callable[[], bool], session: Any) -> None:
    for _ in range(200):
        if holds():
            return
        session.rest(0.05)
    raise AssertionError("it does not come")


@pytest.mark.parametrize("backend", ["c10d", "hierarchical"])
def test_farewell_is_no_fault(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    store = HashStore()
    with Ranks(3, backend) as ranks:

        def made(rank: int) -> Any:
            label = GroupLabel(ranks[rank], "ends", range(3))
            return ProcessGroup(ranks[rank], label, store, timedelta(seconds=60))

        groups = in_threads(3, made)
        try:
            given, found = torch.arange(3.0), torch.zeros(3)
            under_way = groups[2].recv([found], 1, 5)
            groups[0].shutdown()

            def is_told() -> bool:
                try:
                    ranks[2].check()
                except RankLostError as error:
                    return error.is_farewell
                return False

            until(is_told, ranks[2])
            with caplog.at_level(logging.WARNING, "lockstitch"):
                groups[2].report()
            assert caplog.records == []
            # What two others tell each other goes on.
            groups[1].send([given], 2, 5).wait()
            under_way.wait()
            assert found.tolist() == given.tolist()
            with pytest.raises(RankLostError, match="rank 0, .* shut down"):
                groups[1].allreduce([given])
        finally:
            for group in groups:
                group.shutdown()
