"""Who answers for a host when the process that did is gone."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from lockstitch.attach.endpoint import Endpoint
from lockstitch.attach.folder import Elsewhere, Entry
from lockstitch.attach.succession import Seat, borrow_listener, remove_vacant
from lockstitch.link.ports import listen
from tests.unit.attach.cards import card

if TYPE_CHECKING:
    from pathlib import Path

BETA = Elsewhere(("beta:1",), "secret")


def test_who_waits_gets_it_with_what_the_former_knew_when_that_is_gone(tmp_path: Path) -> None:
    first, second, third = (Seat(tmp_path, "10.0.0.1:1") for _ in range(3))
    assert first.take()
    assert not second.take()
    first.write(Elsewhere(("beta:1", "gamma:1"), "secret"))
    first.write(BETA)
    told: list[Elsewhere | None] = []
    waiting = threading.Thread(target=lambda: told.append(second.await_vacancy()))
    waiting.start()
    first.close()
    first.close()
    waiting.join()
    assert told == [BETA]
    assert not third.take()
    second.close()
    # One of another job that had the same address before leaves nothing behind.
    assert third.take()
    third.close()
    fourth = Seat(tmp_path, "10.0.0.1:1")
    assert fourth.await_vacancy() is None
    fourth.close()


def test_a_forked_child_holds_nothing(tmp_path: Path) -> None:
    first, second = (Seat(tmp_path, "10.0.0.1:1") for _ in range(2))
    assert first.take()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, b"begun")
        signal.pause()
    try:
        os.read(reads, 5)
        first.close()
        assert second.take()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        second.close()
        os.close(reads)
        os.close(writes)


def test_the_files_of_those_that_are_gone_are_removed(tmp_path: Path) -> None:
    held, left = Seat(tmp_path, "10.0.0.1:1"), Seat(tmp_path, "10.0.0.1:2")
    assert held.take()
    assert left.take()
    left.close()
    remove_vacant(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["10.0.0.1:1.gateway"]
    assert (tmp_path / "10.0.0.1:1.gateway").stat().st_mode & 0o777 == 0o600
    held.close()


def test_a_file_that_is_removed_between_its_opening_and_its_lock_is_made_anew(
    tmp_path: Path,
) -> None:
    seat, early = Seat(tmp_path, "10.0.0.1:1"), Seat(tmp_path, "10.0.0.1:1")
    remove_vacant(tmp_path)
    assert early.read() is None
    assert seat.take()
    late = Seat(tmp_path, "10.0.0.1:1")
    assert not late.take()
    seat.write(BETA)
    # Who has opened the one that is gone reads the new one, too.
    assert early.read() == late.read() == BETA
    assert not early.take()
    for each in (seat, early, late):
        each.close()


@pytest.mark.parametrize("address", ["10.0.0.1:1", "10.0.0.1:2"])
def test_the_socket_of_the_gateway_of_that_address_is_borrowed(
    tmp_path: Path, address: str
) -> None:
    tmp_path.chmod(0o700)
    entry = Entry(tmp_path, 1, 1)
    entry.write_card(card(1, gateway="10.0.0.1:1"))
    with listen("127.0.0.1", None, 1) as listener:
        endpoint = Endpoint(entry, lambda _question: b"", listener.fileno)
        endpoint.serve()
        try:
            lent = borrow_listener(tmp_path, address)
        finally:
            endpoint.close()
        if address.endswith("2"):
            assert lent is None
            return
        assert lent is not None
        with socket.socket(fileno=lent) as same:
            assert same.getsockname() == listener.getsockname()


def test_who_listens_for_nobody_lends_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    entry = Entry(tmp_path, 1, 1)
    entry.write_card(card(1, gateway="10.0.0.1:1"))
    endpoint = Endpoint(entry, lambda _question: b"")
    endpoint.serve()
    try:
        assert borrow_listener(tmp_path, "10.0.0.1:1") is None
    finally:
        endpoint.close()
