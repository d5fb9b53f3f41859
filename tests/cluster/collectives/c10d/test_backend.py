"""What a rank makes of news that come in another order than usual."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from lockstitch.collectives import SUM
from lockstitch.collectives.c10d.messages import Lost
from lockstitch.errors import CollectiveError, RankLostError
from tests.cluster.collectives.ranks import Ranks


def test_connection_that_breaks_before_the_news_of_a_death_is_explained_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Ranks(2, "c10d by orders") as two:
        backend = two[1]._backend
        is_broken = threading.Event()

        def obey(_message: object) -> None:
            is_broken.set()
            raise RuntimeError("Connection reset by peer")

        monkeypatch.setattr(two[0]._backend, "_obey", lambda _message: None)
        monkeypatch.setattr(backend, "_obey", obey)
        handles = [two[rank].allreduce(torch.ones(1), SUM, name="sum") for rank in range(2)]
        assert is_broken.wait(30)
        backend._hear(Lost(0))
        with pytest.raises(RankLostError, match="rank 0 died"):
            two[1].wait(handles[1])


def test_operation_that_fails_while_all_ranks_live_ends_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Ranks(2, "c10d by orders") as two:

        def obey(_message: object) -> None:
            raise RuntimeError("no memory")

        for rank in range(2):
            monkeypatch.setattr(two[rank]._backend, "_obey", obey)
        handles = [two[rank].allreduce(torch.ones(1), SUM, name="sum") for rank in range(2)]
        for rank in range(2):
            # Its own failure, or that of the other one, if that was told before.
            own = f"failed on rank {rank}: no memory"
            other = 1 - rank
            told = (
                rf"rank {other} could not go on: an operation failed on rank {other}: no memory "
                rf"\(heard by rank {rank}\)"
            )
            with pytest.raises(CollectiveError, match=f"{own}|{told}"):
                two[rank].wait(handles[rank])


def test_shutdown_does_not_wait_for_a_live_rank_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Ranks(2, "c10d by orders") as two:
        has_begun, backend = threading.Event(), two[0]._backend
        obey = backend._obey

        def begin(message: Any) -> None:
            has_begun.set()
            obey(message)

        monkeypatch.setattr(two[1]._backend, "_obey", lambda _message: None)
        monkeypatch.setattr(backend, "_obey", begin)
        handles = [two[rank].allreduce(torch.ones(1), SUM, name="sum") for rank in range(2)]
        assert has_begun.wait(30)
        ending = threading.Thread(target=two[0].shutdown, daemon=True)
        ending.start()
        ending.join(20)
        assert not ending.is_alive()
        with pytest.raises(CollectiveError):
            two[0].wait(handles[0])


def test_shutdown_after_a_loss_waits_once_for_what_gloo_does_not_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Ranks(2, "c10d by orders") as two:
        has_begun, may_end = threading.Event(), threading.Event()
        backend: Any = two[0]._backend

        def stay(_message: object) -> None:
            has_begun.set()
            may_end.wait(60)

        monkeypatch.setattr(two[1]._backend, "_obey", lambda _message: None)
        monkeypatch.setattr(backend, "_obey", stay)
        for rank in range(2):
            two[rank].allreduce(torch.ones(1), SUM, name="sum")
        assert has_begun.wait(30)
        backend._hear(Lost(1))
        waited: list[float] = []
        monkeypatch.setattr(backend._thread, "join", waited.append)
        two[0].shutdown()
        assert waited == [1.0]
        monkeypatch.undo()
        may_end.set()
        backend._thread.join()
        backend._groups.close()
