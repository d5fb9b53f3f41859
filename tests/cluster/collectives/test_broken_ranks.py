"""A rank that cannot go on tells the others, whatever it was that it could not do."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import torch

from lockstitch.collectives import SUM, Session
from lockstitch.collectives.shared_memory.log_negotiation import LogNegotiation
from lockstitch.errors import CollectiveError, RankLostError, StalledError
from tests.cluster.collectives.ranks import Ranks


def fail(*_arguments: object) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def reduce_for_ever(session: Session) -> None:
    for turn in range(20):
        if session.rank == 1:
            session.wait(session.allreduce(torch.ones(3), name=f"alone {turn}"))
        session.wait(session.allreduce(torch.ones(3), SUM, name=f"sum {turn}"))


@pytest.mark.parametrize("part", ["_wakeups.sleep_unless", "_sets.turn"])
def test_rank_whose_calls_fail_ends_the_session_of_all(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ranks(2, "shared_memory") as ranks:
        owner = ranks[1]._backend
        *path, name = part.split(".")
        for each in path:
            owner = getattr(owner, each)
        monkeypatch.setattr(owner, name, fail)
        errors = ranks.errors(reduce_for_ever)
        monkeypatch.undo()
    assert isinstance(errors[0], CollectiveError)
    assert "rank 1 " in str(errors[0])
    assert "Cannot allocate memory" in str(errors[1])


@pytest.mark.parametrize("backend", ["shared_memory", "c10d"])
def test_rank_that_has_waited_too_long_ends_the_session_of_the_others(backend: str) -> None:
    with Ranks(2, backend) as ranks:
        ranks[0]._pending._stall_failure_seconds = 0.01
        handle = ranks[0].allreduce(torch.ones(3), name="never")
        with pytest.raises(StalledError, match="'never' on rank 0 waited"):
            ranks[0].wait(handle)
        with pytest.raises(CollectiveError, match="rank 0 "):
            ranks[1].wait(ranks[1].allreduce(torch.ones(3), name="later"))


def test_rank_that_ends_while_it_tells_its_sets_is_lost_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Ranks(2, "shared_memory") as ranks:
        pair = ranks.run(lambda session: session.open_pair(1 - session.rank).id)[0]
        ranks.run(lambda session: session.barrier(process_set=pair))
        leaving = LogNegotiation.leave
        told = []

        def leave(negotiation: LogNegotiation, *reason: Any) -> None:
            if told:
                raise KeyboardInterrupt
            told.append(negotiation)
            leaving(negotiation, *reason)

        monkeypatch.setattr(LogNegotiation, "leave", leave)
        with pytest.raises(KeyboardInterrupt):
            ranks[1].shutdown()
        monkeypatch.undo()
        handle = ranks[0].allreduce(torch.ones(3), process_set=pair)
        with pytest.raises(RankLostError, match="rank 1 shut down"):
            ranks[0].wait(handle)


def test_set_in_which_a_rank_was_interrupted_is_told_at_the_next_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with Ranks(2, "shared_memory") as ranks:
        monkeypatch.setattr(LogNegotiation, "leave", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ranks[1]._backend._sets.leave()
        monkeypatch.undo()
        ranks[1].shutdown()
        handle = ranks[0].allreduce(torch.ones(3))
        with pytest.raises(RankLostError, match="rank 1 shut down"):
            ranks[0].wait(handle)
