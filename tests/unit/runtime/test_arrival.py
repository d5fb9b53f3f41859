"""Whoever waits for something goes on when it is there, whether it sleeps or reads."""

from __future__ import annotations

from lockstitch.runtime.arrival import Arrival
from tests.unit.runtime.stage import Background


def test_it_ends_a_sleep_that_has_begun_and_one_that_begins_later() -> None:
    for begins_first in (True, False):
        arrival = Arrival()
        sleeper = Background(arrival.sleep) if begins_first else None
        arrival.finish()
        (sleeper or Background(arrival.sleep)).result()
        assert arrival.is_there


def test_it_interrupts_a_thread_that_reads() -> None:
    arrival = Arrival()
    interrupted: list[bool] = []
    arrival.interrupt = lambda: interrupted.append(arrival.is_there)
    assert "read for" in repr(arrival)
    arrival.finish()
    assert interrupted == [True]
    assert "there" in repr(arrival)
