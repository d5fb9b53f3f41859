"""What a plane does with process groups is run by `test_session.py`; here, how it connects them."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed import HashStore

from lockstitch.collectives import SUM
from lockstitch.collectives.arithmetic import UNSCALED
from lockstitch.collectives.c10d import group_operations
from lockstitch.collectives.c10d.group_operations import GroupOperations
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.rank_names import RankNames
from lockstitch.errors import CollectiveError, RankLostError
from tests.cluster.collectives.ranks import in_threads, peers_of

if TYPE_CHECKING:
    from lockstitch.collectives.c10d.gloo_connections import GlooConnections


def test_ranks_that_do_not_connect_are_told_after_the_time_for_it() -> None:
    groups = GroupOperations(0, HashStore(), "cpu", connect_seconds=0.1)
    with pytest.raises(
        CollectiveError,
        match=r"rank 0 .* process set 3, \[1\], from host .* within 0.1 s: .* alive",
    ):
        groups.open_set(ProcessSet(3, (0, 1)))
    groups.close()


def test_ranks_of_a_large_set_connect_when_they_have_something_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_operations, "MOST_CONNECTED", 2)
    store, everybody = HashStore(), ProcessSet(0, (0, 1, 2))
    alone = GroupOperations(0, store, "cpu", address="127.0.0.1", peers=peers_of(0, store))
    alone.open_set(everybody)  # nobody else is there yet

    def work(rank: int) -> tuple[list[float], ...]:
        groups = alone
        if rank:
            peers = peers_of(rank, store)
            groups = GroupOperations(rank, store, "cpu", address="127.0.0.1", peers=peers)
            groups.open_set(everybody)
        vector, mine = torch.arange(5.0) + rank, torch.full((1 + rank,), rank, dtype=torch.uint8)
        groups.reduce(vector, SUM.op, UNSCALED, everybody)
        gathered = groups.gather(mine, [1, 2, 3], everybody)
        content = torch.full((2,), rank, dtype=torch.uint8)
        groups.broadcast(content, 1, everybody)
        dealt = groups.exchange(mine.new_full((3,), rank), [1] * 3, [1] * 3, everybody)
        groups.close_set(everybody)
        groups.close()
        return vector.tolist(), torch.cat(gathered).tolist(), content.tolist(), dealt.tolist()

    expected = [3.0, 6.0, 9.0, 12.0, 15.0], [0, 1, 1, 2, 2, 2], [1, 1], [0, 1, 2]
    assert in_threads(3, work) == [expected] * 3


@pytest.mark.parametrize("kind", ["operation", "message"])
def test_who_waits_for_a_rank_that_lives_and_does_not_come_is_let_go(kind: str) -> None:
    store, pair = HashStore(), ProcessSet(0, (0, 1))

    def opened(rank: int) -> tuple[GroupOperations, Any, GlooConnections]:
        groups = GroupOperations(
            rank, store, "cpu", address="127.0.0.1", peers=peers_of(rank, store)
        )
        groups.open_set(pair)
        return groups, *groups.message_group(pair, timedelta(minutes=1))

    (groups, messages, connections), (other, *_) = in_threads(2, opened)
    mine = torch.ones(3, dtype=torch.uint8)

    def work(place: int) -> None:
        if place == 0 and kind == "operation":
            with pytest.raises(RuntimeError, match="onnection closed"):
                groups.gather(mine, [3, 3], pair)
        elif place == 0:
            received = messages.recv([mine], 1, 0)
            with pytest.raises(RuntimeError, match="onnection closed"):
                received.wait()
        else:
            threading.Event().wait(0.1)
            (groups.abort if kind == "operation" else connections.end)()

    in_threads(2, work)
    for each in (groups, other):
        each.close_set(pair)
        each.close()


def test_what_gloo_says_of_an_address_is_said_of_the_ranks_there() -> None:
    store, pair = HashStore(), ProcessSet(0, (0, 1))
    text = (
        "[/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:4242: Connection timed out. This "
        "is typically caused by a remote worker hanging"
    )

    def work(rank: int) -> list[RuntimeError]:
        names = RankNames()
        names.learn_places(lambda _rank: "", f"host h{rank}")
        groups = GroupOperations(
            rank, store, "cpu", address="127.0.0.1", names=names, peers=peers_of(rank, store)
        )
        groups.open_set(pair)
        others = [text.replace("timed out", "reset"), text.replace(".1", ".2"), "something else"]
        found = [groups._explained(RuntimeError(said), pair) for said in (text, *others)]
        groups.close_set(pair)
        groups.close()
        return found

    silent, reset, unknown, other = in_threads(2, work)[1]
    assert isinstance(silent, RankLostError)
    assert str(silent) == (
        "nothing goes to or comes from rank 0, on host h0, any more (Read error [127.0.0.1]:4242: "
        "Connection timed out)"
    )
    assert type(reset) is CollectiveError
    assert type(unknown) is type(other) is RuntimeError
    early = GroupOperations(1, store, "cpu")  # it has not heard where the others are
    said = RuntimeError(text)
    assert early._explained(said, pair) is said


def test_operations_may_take_longer_than_connecting() -> None:
    groups = GroupOperations(0, HashStore(), "cpu", seconds=6.0, connect_seconds=0.1)
    alone = ProcessSet(1, (0,))
    groups.open_set(alone)
    assert groups._may_last(torch.ones(3 << 18), 2).total_seconds() == pytest.approx(6 + 6)
    vector = torch.ones(3)
    groups.reduce(vector, SUM.op, UNSCALED, alone)
    assert vector.tolist() == [1.0] * 3
    groups.close_set(alone)
    groups.close()
