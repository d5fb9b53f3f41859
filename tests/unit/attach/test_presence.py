"""This process as others find it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstitch.attach.asking import all_entries, ask
from lockstitch.attach.folder import Elsewhere
from lockstitch.attach.presence import (
    Presence,
    check_job_name,
    keys_of,
    meeting_key,
    new_job,
    rank_of,
)
from lockstitch.attach.sources import Sources
from lockstitch.attach.values import Question

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def presence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Presence]:
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("LOCKSTITCH_ATTACH", "LOCKSTITCH_JOB", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    made = Presence(Sources())
    yield made
    made.close()


def test_a_process_is_found_from_show_to_close(presence: Presence) -> None:
    assert not presence.is_shown
    assert presence.descriptor is None
    presence.show()
    presence.show()
    (report,) = ask(all_entries(), Question()).reports
    assert (report.card.pid, report.card.born) == (os.getpid(), presence.card().born)
    presence.close()
    presence.close()
    assert all_entries() == []


def test_the_card_is_renewed_with_names_and_meetings(presence: Presence) -> None:
    presence.show()
    presence._sources.names.append(lambda: ["ps"])
    presence.meet_at(meeting_key("example.org", 29500))
    presence.meet_at("")
    (entry,) = all_entries()
    card = entry.read_card()
    assert card is not None
    assert card.names == ("ps",)
    assert card.keys == ("meeting example.org:29500",)


def test_only_a_process_that_a_launcher_has_started_is_shown_by_an_import(
    presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence.show_if_launched()
    assert not presence.is_shown
    monkeypatch.setenv("RANK", "3")
    presence.show_if_launched()
    assert presence.is_shown
    assert presence.card().rank == "3"


def test_who_does_not_want_to_be_seen_is_not(
    presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTITCH_ATTACH", "0")
    presence.show()
    assert not presence.is_shown


def test_where_there_can_be_no_folder_the_program_goes_on(
    presence: Presence, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCKSTITCH_RUNTIME_DIR", "/proc/nowhere")
    caplog.set_level("INFO", "lockstitch")
    presence.show()
    presence.show()
    assert not presence.is_shown
    assert len(caplog.records) == 1
    assert "do not see this process" in caplog.text


def test_a_forked_child_begins_unseen_and_belongs_to_its_parents_job(presence: Presence) -> None:
    presence.meet_at("meeting here")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        was_shown = presence.is_shown
        presence.show_as("slot 1")
        card = presence.card()
        told = f"{was_shown} {card.names} {card.keys} {card.parent == os.getppid()}"
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "False ('slot 1',) ('meeting here',) True"
    os.waitpid(pid, 0)
    assert len(list(presence._entry.folder.glob("*.socket"))) == 2  # type: ignore[union-attr]
    presence.forget_child(pid)
    assert len(list(presence._entry.folder.glob("*.socket"))) == 1  # type: ignore[union-attr]


def test_a_launcher_answers_in_its_own_loop(presence: Presence) -> None:
    endpoint = presence.show_launcher()
    assert endpoint is not None
    assert presence.descriptor == endpoint.fileno()
    assert presence.card().kind == "launcher"


@pytest.mark.parametrize(
    ("environment", "rank", "keys"),
    [
        ({}, "", ()),
        ({"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "1",
         ("meeting localhost:1",)),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, "", ("meeting localhost:1",)),
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "1"}, "", ("meeting node1:1",)),
        ({"LOCKSTITCH_JOB": "j/1", "LOCKSTITCH_WORKER": "2"}, "2", ("job j/1",)),
        ({"SLURM_PROCID": "4"}, "", ()),
        ({"SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_ID": "0",
          "SLURM_JOB_ID": "7"}, "4", ("SLURM_STEP_ID 7.0",)),
    ],
)  # fmt: skip
def test_rank_and_keys_as_launchers_say(
    environment: dict[str, str], rank: str, keys: tuple[str, ...]
) -> None:
    assert rank_of(environment) == rank
    assert keys_of(environment) == keys


def test_two_jobs_of_one_name_are_two() -> None:
    assert new_job("train") != new_job("train")
    check_job_name("train 3")
    for name in ("", "a/b", "12", "a\n"):
        with pytest.raises(ValueError, match="a job cannot be called"):
            check_job_name(name)


def test_a_process_is_found_with_its_card_from_the_first_moment_on(
    presence: Presence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening: list[bool] = []
    replace = Path.replace

    def look(path: Path, target: Path) -> Path:
        if path.suffix == ".fresh":
            # Who connects now is not to take it for gone: there is nothing to connect to yet.
            listening.append(all_entries() != [])
            assert list((tmp_path / "run").glob("*.card")) != []
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", look)
    presence.show()
    assert listening == [False]
    (entry,) = all_entries()
    assert entry.read_card() is not None


def test_what_a_child_has_left_is_removed_and_nothing_else_is(
    presence: Presence, tmp_path: Path
) -> None:
    presence.show()
    folder, pid = tmp_path / "run", os.getpid()
    born = presence.card().born
    for name in (f"{pid}-1.card", f"{pid}-1.socket", f"{pid}-notes", "7-1.card"):
        (folder / name).touch()
    presence.forget_child(pid)  # its number has been given to this process
    left = {path.name for path in folder.iterdir()}
    assert left == {f"{pid}-{born}.card", f"{pid}-{born}.socket", f"{pid}-notes", "7-1.card"}


def test_in_a_folder_that_is_not_this_users_nothing_is_removed(
    presence: Presence, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    (folder / "7-1.card").touch()
    presence.forget_child(7)
    presence.show()
    assert not presence.is_shown
    assert [path.name for path in folder.iterdir()] == ["7-1.card"]


def test_a_launcher_within_a_worker_leaves_the_answers_to_the_workers_thread(
    presence: Presence,
) -> None:
    presence.show()
    assert presence.show_launcher() is None
    assert len(ask(all_entries(), Question()).reports) == 1


def test_a_card_is_not_written_after_the_end(presence: Presence, tmp_path: Path) -> None:
    presence.show()
    presence.close()
    presence.renew()
    presence.tell_elsewhere("10.0.0.1:1", Elsewhere((), "ab" * 32))
    assert list((tmp_path / "run").iterdir()) == []
