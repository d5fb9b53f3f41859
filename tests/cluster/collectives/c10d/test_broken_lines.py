"""A line between rank 0 and another that fails once, at whichever end and call: the session of
every rank ends, and each says whose line it was."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.collectives import SUM
from lockstitch.errors import CollectiveError
from tests.cluster.collectives.ranks import Ranks

if TYPE_CHECKING:
    from lockstitch.collectives import Session


def break_once(connection: Any, call: str, number: int) -> None:
    """The nth call of that kind fails; the connection would go on afterwards."""
    whole, left = getattr(connection, call), [number]

    def broken(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        whole(*arguments)

    setattr(connection, call, broken)


def reduce_for_ever(session: Session) -> None:
    for turn in range(100):
        handle = session.allreduce(torch.full((3,), float(session.rank)), SUM, name=f"sum {turn}")
        assert session.wait(handle).tolist() == [3.0] * 3
    raise AssertionError("nothing has failed")


@pytest.mark.parametrize(
    "number", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 3, 4, 5, 9))]
)
@pytest.mark.parametrize("call", ["send", "receive_into"])
@pytest.mark.parametrize("end", ["rank 1's", "rank 0's"])
@pytest.mark.parametrize(
    "backend", ["c10d", pytest.param("c10d by orders", marks=pytest.mark.slow)]
)
def test_call_that_fails_on_a_line_ends_the_session_of_every_rank(
    backend: str, end: str, call: str, number: int
) -> None:
    with Ranks(3, backend) as ranks:
        ear = ranks[1]._backend._link if end == "rank 1's" else ranks[0]._backend._link  # type: ignore[attr-defined]
        line = ear._line if end == "rank 1's" else ear._lines[1]
        break_once(line.stream, call, number)
        first = ranks.errors(reduce_for_ever)
        later = ranks.errors(lambda session: session.allreduce(torch.ones(1), name="later"))
    for errors in (first, later):
        assert [isinstance(error, CollectiveError) for error in errors] == [True] * 3
        for rank, error in enumerate(errors):
            assert f"rank {int(rank != 1)} " in str(error), errors


@pytest.mark.slow
def test_rank_that_cannot_go_on_tells_the_others_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks(3, "c10d by orders") as ranks:

        def obey(_message: object) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr(ranks[2]._backend, "_obey", obey)
        errors = ranks.errors(reduce_for_ever)
    assert all("no room" in str(error) and "rank 2" in str(error) for error in errors), errors


def test_orders_that_end_on_rank_0_end_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    with Ranks(3, "c10d") as ranks:
        coordinator_rank = ranks[0]._backend._link  # type: ignore[attr-defined]

        def hear(_told: object) -> None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        monkeypatch.setattr(coordinator_rank._coordinator, "hear", hear)
        errors = ranks.errors(reduce_for_ever)
    for error in errors:
        assert "rank 0 could not give orders any more: OSError" in str(error), errors
