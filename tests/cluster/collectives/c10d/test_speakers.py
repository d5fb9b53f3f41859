"""Sessions in which ranks speak for others: with real connections, on hosts of different sizes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed import HashStore

from lockstitch.collectives import SUM, Session, SessionOptions, open_session
from lockstitch.collectives.c10d import tree_links
from lockstitch.collectives.c10d.speaker_link import SpeakerServer
from lockstitch.collectives.c10d.tree_coordinator import TreeCoordinator
from lockstitch.errors import CollectiveError, MismatchError
from tests.cluster.collectives.ranks import in_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = ("a", "a", "b", "c", "b", "d", "b", "d", "a")
SPEAKERS = (2, 5)


@pytest.fixture
def sessions() -> Iterator[list[Session]]:
    opened = in_threads(len(HOSTS), open_one(HashStore()))
    yield opened
    in_threads(len(HOSTS), lambda rank: opened[rank].shutdown())


def open_one(store: Any, **options: Any) -> Any:
    def opening(rank: int) -> Session:
        chosen = SessionOptions(host=HOSTS[rank], speaker_fan_in=2, **options)
        return open_session(rank, len(HOSTS), store, chosen)

    return opening


def ones(session: Session, name: str) -> float:
    return float(session.wait(session.allreduce(torch.ones(1), SUM, name=name)).item())


def go_on(session: Session) -> None:
    for turn in range(1000):
        ones(session, f"x{turn}")


def table_of(session: Session) -> Any:
    return session._backend._link._coordinator  # type: ignore[attr-defined]


def test_speakers_are_found_where_the_job_has_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTITCH_SECRET", "5a" * 32)
    opened = in_threads(len(HOSTS), open_one(HashStore()))
    assert in_threads(len(HOSTS), lambda rank: ones(opened[rank], "x")) == [9.0] * 9
    in_threads(len(HOSTS), lambda rank: opened[rank].shutdown())


def test_results_are_those_of_one_process(sessions: list[Session]) -> None:
    assert isinstance(table_of(sessions[0]), TreeCoordinator)
    links = [session._backend._link for session in sessions]  # type: ignore[attr-defined]
    assert [rank for rank, link in enumerate(links) if isinstance(link, SpeakerServer)] == [2, 5]

    def work(rank: int) -> Any:
        session, found = sessions[rank], []
        odd = session.add_process_set([1, 3, 4, 5, 7])
        names = [f"x{number}" for number in range(8)]
        for turn in range(5):
            random.Random(rank * 7 + turn).shuffle(names)
            handles = {
                name: session.allreduce(torch.tensor([float(rank + 1), turn]), SUM, name=name)
                for name in names
            }
            found.append([session.wait(handles[name]).tolist() for name in sorted(names)])
            rows = session.wait(session.allgather(torch.full((rank % 3, 1), rank), name="rows"))
            found.append(rows.flatten().tolist())
            if odd.includes(rank):
                part = session.allreduce(torch.tensor([rank]), SUM, name="odd", process_set=odd.id)
                assert session.wait(part).tolist() == [20]
        return found

    expected_rows = [rank for rank in range(9) for _ in range(rank % 3)]
    expected = [each for turn in range(5) for each in ([[45.0, 9.0 * turn]] * 8, expected_rows)]
    for found in in_threads(len(HOSTS), work):
        assert found == expected


def test_ranks_that_disagree_are_named_and_others_go_on(sessions: list[Session]) -> None:
    def work(rank: int) -> Any:
        session = sessions[rank]
        wrong = session.allreduce(torch.ones(1 + (rank == 6)), SUM, name="wrong")
        with pytest.raises(MismatchError, match=r"shape: \(2,\) on rank 6|on rank 6"):
            session.wait(wrong)
        return ones(session, "right")

    assert in_threads(len(HOSTS), work) == [9.0] * 9


def test_ranks_run_out_of_data_at_different_times(sessions: list[Session]) -> None:
    def work(rank: int) -> Any:
        session = sessions[rank]
        sums = [ones(session, f"turn {turn}") for turn in range(rank + 1)]
        return sums, session.join()

    for rank, (sums, last) in enumerate(in_threads(len(HOSTS), work)):
        assert sums == [9.0 - turn for turn in range(rank + 1)]
        assert last == 8


def test_who_waits_is_told_for_whom(sessions: list[Session]) -> None:
    handles = [
        sessions[rank].allreduce(torch.ones(1), SUM, name="late") for rank in range(9) if rank != 4
    ]
    for _ in range(100):
        backend: Any = sessions[7]._backend
        if backend.missing(handles[6]) == (4,):
            break
    else:
        raise AssertionError("rank 7 is not told that it waits for rank 4")
    handles.insert(4, sessions[4].allreduce(torch.ones(1), SUM, name="late"))
    assert in_threads(9, lambda rank: sessions[rank].wait(handles[rank]).item()) == [9.0] * 9


@pytest.mark.parametrize("rank", [*SPEAKERS, 4, 3])
def test_rank_that_dies_is_named_by_all(sessions: list[Session], rank: int) -> None:
    backend: Any = sessions[rank]._backend
    lines = getattr(backend._link, "_lines", None)
    backend._link._send = lambda _told: None  # its lines end at once, so it says nothing any more
    for line in [backend._link._line] if lines is None else list(lines.values()):
        line.close()
    others = [other for other in range(len(HOSTS)) if other != rank]

    def work(place: int) -> str:
        with pytest.raises(CollectiveError) as error:
            go_on(sessions[others[place]])
        return str(error.value)

    told = in_threads(len(others), work)
    assert all(f"rank {rank} died, or its connection broke" in text for text in told), told


def test_others_go_on_when_ranks_have_left(sessions: list[Session]) -> None:
    in_threads(9, lambda rank: sessions[rank].wait(sessions[rank].allreduce(torch.ones(1))))
    sets = in_threads(9, lambda rank: sessions[rank].add_process_set([0, 2, 3, 4]).id)
    for rank in (8, 6, 7):
        sessions[rank].shutdown()

    def work(place: int) -> float:
        session = sessions[(0, 2, 3, 4)[place]]
        part = session.allreduce(torch.ones(1), SUM, name="part", process_set=sets[0])
        return float(session.wait(part).item())

    assert in_threads(4, work) == [4.0] * 4
    with pytest.raises(CollectiveError, match="shut down without it"):
        sessions[1].wait(sessions[1].allreduce(torch.ones(1), name="all"))


def test_rank_that_does_not_come_to_its_speaker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def stay_away(links: Any, hear: Any) -> Any:
        if links.place.rank == 6:
            raise CollectiveError("there is no way")
        return whole(links, hear)

    whole = tree_links.TreeLinks.of_other
    monkeypatch.setattr(tree_links.TreeLinks, "of_other", stay_away)
    opening = open_one(HashStore())

    def attempt(rank: int) -> str:
        with pytest.raises(CollectiveError) as error:
            opening(rank)
        return str(error.value)

    for text in in_threads(len(HOSTS), attempt):
        assert "there is no way" in text
