"""A rank that fails on its way into a session is the end of that way for all, who are told who."""

from __future__ import annotations

import shutil
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed import HashStore

from lockstitch import __version__
from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.collectives import SessionOptions, open_session, opening
from lockstitch.collectives.c10d import tree_links
from lockstitch.errors import CollectiveError
from lockstitch.transport.stream import StreamConnection
from tests.cluster.collectives.ranks import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lockstitch.collectives import Session

SECONDS = 60.0


def open_three(
    backend: str,
    seconds: float = SECONDS,
    more: Callable[[Session], object] = lambda _session: None,
    **options: Any,
) -> list[BaseException | None]:
    """What each rank raised."""
    store = HashStore()

    def attempt(rank: int) -> BaseException | None:
        host = f"host {rank // 2}" if backend == "hierarchical" else None
        chosen = SessionOptions(backend=backend, host=host, timeout_seconds=seconds, **options)  # type: ignore[arg-type]
        threading.current_thread().name = f"opens {rank}"
        try:
            session = open_session(rank, 3, store, chosen)
            try:
                more(session)
            finally:
                session.shutdown()
        except Exception as error:  # noqa: BLE001 - returned
            return error
        return None

    return in_threads(3, attempt)


def failing_on(rank: int, whole: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    def function(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name == f"opens {rank}":
            raise error
        return whole(*arguments, **options)

    return function


@pytest.mark.parametrize(
    ("backend", "function", "rank"),
    [
        ("c10d", "connect_to_coordinator", 1),
        ("c10d", "GroupOperations", 0),
        ("c10d", "CoordinatorServer", 0),
        ("shared_memory", "create", 0),
        ("shared_memory", "SharedMemoryBackend", 0),
        ("shared_memory", "SharedMemoryBackend", 2),
        ("hierarchical", "SharedMemoryBackend", 1),
        ("hierarchical", "HierarchicalOperations", 2),
    ],
)
def test_rank_that_fails_at_the_start_is_told_to_all_at_once(
    backend: str, function: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = SYSTEM_CLOCK.now()
    error = CollectiveError("there is no room")
    module = opening if hasattr(opening, function) else tree_links
    monkeypatch.setattr(module, function, failing_on(rank, getattr(module, function), error))
    errors = open_three(backend)
    assert SYSTEM_CLOCK.now() - begin < SECONDS / 2
    assert errors[rank] is error
    for other, heard in enumerate(errors):
        if other != rank:
            assert isinstance(heard, CollectiveError)
            assert f"rank {rank} gave up: there is no room" in str(heard), errors


def test_rank_whose_groups_do_not_connect_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_set(groups: Any, process_set: Any) -> None:
        if groups._rank == 2:
            raise RuntimeError("no way to rank 1")
        whole(groups, process_set)

    whole = opening.GroupOperations.open_set
    monkeypatch.setattr(opening.GroupOperations, "open_set", open_set)
    errors = open_three("c10d", 2.0)
    assert str(errors[2]) == "no way to rank 1"
    for error in errors[:2]:
        assert "rank 2 " in str(error), errors
        assert "no way to rank 1" in str(error), errors


def test_process_set_is_given_up_where_a_host_falls_silent_though_gloo_goes_on_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def new_group(groups: Any, process_set: Any) -> Any:
        if process_set.id:
            may_end.wait(SECONDS)
            raise RuntimeError("too late")
        return whole(groups, process_set)

    def silent(stream: StreamConnection) -> float:
        return 11.0 if threading.current_thread().name == "opens 2" else 0.0

    may_end, whole = threading.Event(), opening.GroupOperations._new_group
    monkeypatch.setattr(opening.GroupOperations, "_new_group", new_group)
    monkeypatch.setattr(StreamConnection, "seconds_unacknowledged", silent)
    begin, errors = (
        SYSTEM_CLOCK.now(),
        open_three("c10d", more=lambda it: it.add_process_set([0, 2])),
    )
    may_end.set()
    assert SYSTEM_CLOCK.now() - begin < SECONDS / 2
    assert "nothing goes to or comes from rank 0, on host" in str(errors[2]), errors
    assert "rank 2 could not go on: nothing goes to or comes from rank 0" in str(errors[0]), errors


@pytest.mark.parametrize("backend", ["shared_memory", "c10d"])
def test_rank_with_another_version_of_the_library_is_told_by_all(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(*arguments: Any, kind: str, **options: Any) -> Any:
        _, _, rank, *_ = arguments
        said = kind.replace(__version__, "9.1.0") if rank == 2 else kind
        return whole(*arguments, kind=said, **options)

    whole = opening.join
    monkeypatch.setattr(opening, "join", publish)
    for error in open_three(backend):
        here = f", on host {socket.gethostname()},"
        said = f"rank 0{here} runs lockstitch {__version__}, rank 2{here} 9.1.0, and"
        assert said in str(error)
        assert "install the same on all ranks" in str(error)


def test_listener_that_nobody_on_another_host_reaches_is_told_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spread(*arguments: Any, **options: Any) -> Any:
        roster = whole(*arguments, **options)
        roster.census = replace(roster.census, hosts=("0", "0", "1"))
        return roster

    whole = opening.join
    monkeypatch.setattr(opening, "join", spread)
    monkeypatch.setenv("LOCKSTITCH_ADDRESS", "localhost")
    errors = open_three("c10d")
    for error in errors:
        assert "can be reached at tcp:127.0.0.1:" in str(error)
        assert "where rank 2, on another host" in str(error)


def test_ranks_that_are_told_another_file_of_the_same_port_meet_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    for job in ("first", "second"):
        folder = tmp_path / job
        folder.mkdir()
        monkeypatch.setenv("LOCKSTITCH_STORE", str(folder / "29500"))
        options = SessionOptions(timeout_seconds=5.0)
        in_threads(2, lambda rank: open_session(rank, 2, "env://", options).shutdown())  # noqa: B023
        shutil.rmtree(folder)
