"""The folder of running processes: who may enter it, and what lies in it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lockstitch.attach.folder import (
    Elsewhere,
    Entry,
    check_folder,
    entries,
    folder_of,
    make_folder,
)
from tests.unit.attach.cards import CARD


def test_the_folder_is_the_users_own_unless_another_is_named() -> None:
    assert folder_of({}, 1000) == Path("/tmp/lockstitch-1000")
    assert folder_of({"LOCKSTITCH_RUNTIME_DIR": "/run/mine"}, 1000) == Path("/run/mine")


def test_it_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    make_folder(folder)
    make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_one_that_others_may_enter_or_that_is_none_is_not_used(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o750)
    with pytest.raises(PermissionError, match=r"can be entered by others .*0750"):
        check_folder(open_to_all)
    own = tmp_path / "own"
    make_folder(own)
    (tmp_path / "link").symlink_to(own)
    with pytest.raises(PermissionError, match="is no folder"):
        make_folder(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_one_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        make_folder(folder)


def test_a_card_is_read_as_it_was_written_and_replaced(tmp_path: Path) -> None:
    entry = Entry(tmp_path, 10, 1)
    assert entry.read_card() is None
    entry.write_card(CARD)
    assert entry.read_card() == CARD
    (tmp_path / "10-1.card").write_text('{"pid": "ten"}')
    assert entry.read_card() is None
    entry.write_card(CARD)
    assert entry.read_card() == CARD


def test_entries_are_found_by_number_and_nothing_else_is(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    make_folder(folder)
    for name in ("20-5.socket", "3-1.card", "3-1.socket", "x-1.socket", "3.socket", "4-1.new"):
        (folder / name).touch()
    assert [(each.pid, each.born) for each in entries(folder)] == [(3, 1), (4, 1), (20, 5)]


def test_what_nobody_listens_at_any_more_is_removed(tmp_path: Path) -> None:
    entry = Entry(tmp_path, 10, 1)
    entry.write_card(CARD)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(entry.address))
        listener.listen()
        connection = entry.connect()
        assert connection is not None
        connection.close()
        assert entry.address.exists()
    assert entry.connect() is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_known_of_other_hosts_is_for_this_user_alone_and_goes_with_the_rest(
    tmp_path: Path,
) -> None:
    entry = Entry(tmp_path, 10, 1)
    assert entry.read_elsewhere() is None
    elsewhere = Elsewhere(("10.0.0.2:4000",), "ab" * 32)
    for _ in range(2):
        entry.write_elsewhere(elsewhere)
        assert entry.read_elsewhere() == elsewhere
    (path,) = tmp_path.glob("*.elsewhere")
    assert path.stat().st_mode & 0o777 == 0o600
    entry.write_card(CARD)
    assert entry.age_seconds() < 60
    entry.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_goes_while_one_looks_at_it_has_no_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda _path: True)  # it was, a moment ago
    assert Entry(tmp_path, 10, 1).age_seconds() < 60.0
