"""Who answers for a host when the process that did is gone."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

from lockstitch.attach.folder import Elsewhere
from lockstitch.attach.succession import Seat, remove_vacant

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
