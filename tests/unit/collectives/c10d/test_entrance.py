"""Who comes in at an entrance, and when it looks again where nobody can be let in."""

from __future__ import annotations

import errno

import pytest

from lockstitch.collectives.c10d.entrance import Entrance
from lockstitch.testing import ManualClock


class Listener:
    """One at which somebody waits; `error` is what accepting raises."""

    address = "nowhere"

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.accepted = 0

    def accept(self) -> None:
        if self.error is not None:
            raise self.error
        self.accepted += 1

    def close(self) -> None:
        pass


class Poller:
    """One that notes what it is to watch."""

    def __init__(self) -> None:
        self.armed: list[object] = []

    def add(self, pollable: object) -> None:
        pass

    def arm(self, pollable: object) -> None:
        self.armed.append(pollable)


@pytest.fixture
def parts():
    listener, poller = Listener(), Poller()
    entrance = Entrance(listener, poller, ManualClock(), pytest.fail, pytest.fail)
    entrance.open()
    poller.armed.clear()
    return entrance, listener, poller


def test_listener_is_armed_again_after_each_who_comes(parts) -> None:
    entrance, listener, poller = parts
    assert entrance.look_at(listener)
    assert (listener.accepted, poller.armed) == (1, [listener])
    assert entrance.seconds_to_next() is None


def test_where_no_file_can_be_opened_it_pauses_before_it_looks_again(parts) -> None:
    entrance, listener, poller = parts
    listener.error = OSError(errno.EMFILE, "Too many open files")
    assert entrance.look_at(listener)
    assert poller.armed == []
    assert entrance.seconds_to_next() == pytest.approx(0.1)
    entrance.reopen()
    assert poller.armed == [listener]
    listener.error = None
    assert entrance.look_at(listener)
    assert entrance.seconds_to_next() is None


def test_what_is_not_its_own_is_left_to_others(parts) -> None:
    entrance, _, poller = parts
    assert not entrance.look_at(object())
    assert poller.armed == []
