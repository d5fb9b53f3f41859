"""The twin in one process: what it has beyond a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.collectives import SUM, LocalSessions, Stall
from lockstitch.errors import RankLostError, StalledError
from lockstitch.testing.clock import ManualClock

if TYPE_CHECKING:
    from lockstitch.collectives.session import Session


def test_run_gives_values_in_the_order_of_ranks() -> None:
    with LocalSessions(3) as sessions:
        assert len(sessions) == 3
        assert sessions.run(lambda session: session.rank) == [0, 1, 2]


def test_run_raises_the_error_of_the_first_rank() -> None:
    def fail(session: Session) -> None:
        raise KeyError(session.rank)

    with LocalSessions(2) as sessions, pytest.raises(KeyError, match="0"):
        sessions.run(fail)


def test_killed_rank_ends_every_other_session_at_once() -> None:
    with LocalSessions(3) as sessions:
        handle = sessions[0].allreduce(torch.ones(1), SUM, name="a")
        sessions.kill(2)
        with pytest.raises(RankLostError, match="rank 2 died"):
            sessions[0].wait(handle)
        with pytest.raises(RankLostError):
            sessions[1].allreduce(torch.ones(1))


def test_hosts_tell_local_ranks() -> None:
    sessions = LocalSessions(4, hosts=["a", "a", "b", "b"])
    assert [session.topology.local_rank for session in sessions] == [0, 1, 0, 1]


def test_session_of_one_rank_needs_nobody() -> None:
    with LocalSessions(1) as (session,):
        assert session.wait(session.allreduce(torch.ones(2))).tolist() == [1, 1]
        assert session.join() == 0


def test_wait_that_stalls_is_reported_and_ends() -> None:
    clock = ManualClock()
    seen: list[Stall] = []
    with LocalSessions(
        2, clock=clock, stall_warning_seconds=5, stall_failure_seconds=20
    ) as sessions:
        sessions[0].observers.stall = seen.append
        handle = sessions[0].allreduce(torch.ones(1), name="lonely")
        clock.advance(30)
        with pytest.raises(StalledError, match=r"waited 30 s for rank 1"):
            sessions[0].wait(handle)
    assert [stall.name for stall in seen] == ["lonely"]


def test_deferred_operation_is_done_by_the_calls_that_follow() -> None:
    with LocalSessions(1) as (session,):
        first = session.deferred.allreduce(torch.ones(1), name="later")
        assert not first.is_done
        with pytest.raises(ValueError, match="in flight"):
            session.deferred.allreduce(torch.ones(1), name="later")
        assert session.poll(first)
        second = session.deferred.broadcast(torch.ones(1), 0)
        third = session.deferred.allgather(torch.ones(1))
        assert [second.is_done, third.is_done] == [True, False]
        assert session.deferred.wait(third).tolist() == [1]
