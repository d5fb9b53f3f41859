from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from lockstitch.doctor import surroundings
from lockstitch.doctor.surroundings import (
    KNOWN,
    check_address,
    check_clock,
    check_cpus,
    check_descriptors,
    check_replacement,
    check_secret,
    check_shared_memory,
    check_variables,
    look_around,
)
from lockstitch.link import addresses

if TYPE_CHECKING:
    import pytest

SOURCES = Path(surroundings.__file__).parents[1]


def test_every_variable_that_something_reads_is_known() -> None:
    texts = [path.read_text() for path in SOURCES.rglob("*.py") if "doctor" not in path.parts]
    read = {name for text in texts for name in re.findall(r"\bLOCKSTITCH_[A-Z_]*[A-Z]\b", text)}
    assert read == KNOWN


def test_misspelt_variable_is_wrong_and_the_right_one_is_named() -> None:
    (found,) = check_variables({"LOCKSTITCH_SECRT": "x", "HOME": "/"})
    assert found.state == "wrong"
    assert found.remedy == "did you mean LOCKSTITCH_SECRET?"


def test_secret_itself_is_never_shown() -> None:
    assert list(check_variables({"LOCKSTITCH_SECRET": "00" * 32})) == []
    assert "00" not in check_secret({"LOCKSTITCH_SECRET": "00" * 32}).says


def test_secret_that_others_can_read_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("00" * 32)
    file.chmod(0o644)
    assert check_secret({"LOCKSTITCH_SECRET_FILE": str(file)}).state == "wrong"
    file.chmod(0o600)
    assert check_secret({"LOCKSTITCH_SECRET_FILE": str(file)}).state == "good"
    assert check_secret({"LOCKSTITCH_SECRET_FILE": str(tmp_path / "none")}).state == "wrong"
    file.chmod(0o640)  # as a pod has it, where root gives it to the group of this process
    is_roots = file.stat().st_uid == 0
    found = check_secret({"LOCKSTITCH_SECRET_FILE": str(file)})
    assert found.state == ("good" if is_roots else "wrong")


def test_doing_without_a_secret_is_worth_a_note() -> None:
    assert check_secret({"LOCKSTITCH_INSECURE": "1"}).state == "note"
    assert check_secret({}).state == "good"


def test_address_of_this_machine_alone_or_of_another_is_worth_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert check_address({"LOCKSTITCH_ADDRESS": "127.0.0.1"}).state == "note"
    monkeypatch.setattr(surroundings, "interface_addresses", lambda: [("eth0", "192.0.2.1")])
    assert check_address({"LOCKSTITCH_ADDRESS": "192.0.2.1"}).state == "good"
    assert check_address({"LOCKSTITCH_ADDRESS": "203.0.113.9"}).state == "note"


def test_address_that_does_not_exist_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_knows(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
    monkeypatch.setattr(addresses, "interface_addresses", lambda: [("lo", "127.0.0.1")])
    assert check_address({"LOCKSTITCH_ADDRESS": "nowhere.invalid"}).state == "wrong"
    assert check_address({"LOCKSTITCH_IFNAME": "eth9"}).state == "wrong"
    assert check_address({"LOCKSTITCH_ADDRESS": "lo"}).state == "note"
    assert check_address({}).state == "note"


def test_replacement_is_told_and_a_wrong_one_refused() -> None:
    assert check_replacement({}).says == "none is in force"
    assert check_replacement({"LOCKSTITCH_REPLACE": "mpi"}).state == "wrong"


def test_replacement_that_nothing_obeys_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert check_replacement({"LOCKSTITCH_REPLACE": "horovod"}).state == "wrong"
    (tmp_path / "lockstitch_replace.pth").touch()
    assert check_replacement({"LOCKSTITCH_REPLACE": "horovod"}).says == "in force: horovod"


def test_few_open_files_are_too_few() -> None:
    assert check_descriptors(256).state == "wrong"
    assert check_descriptors(65536).state == "good"
    assert check_descriptors(-1).state == "good"  # no limit


def test_more_threads_than_cores_are_wrong() -> None:
    assert [it.state for it in check_cpus(8, 2.0, {"OMP_NUM_THREADS": "8"})] == ["note", "wrong"]
    assert [it.state for it in check_cpus(8, 8, {"OMP_NUM_THREADS": "8"})] == ["good"]


def test_missing_shared_memory_is_worth_a_note(tmp_path: Path) -> None:
    assert check_shared_memory(tmp_path / "shm").state == "note"


def test_clock_of_another_century_is_wrong() -> None:
    assert check_clock(0.0).state == "wrong"
    assert check_clock(1.8e9).state == "good"


def test_looking_around_asks_nothing_of_torch() -> None:
    assert {it.topic for it in look_around({})} >= {"address", "secret", "limits", "clock"}
