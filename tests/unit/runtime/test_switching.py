"""The interpreter's switch interval is the shortest that a worker asks for, and restored."""

from __future__ import annotations

import sys

import pytest

from lockstitch.runtime.switching import SwitchInterval


@pytest.fixture(autouse=True)
def interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield
    sys.setswitchinterval(before)


def test_the_shortest_that_is_wanted_holds_until_nobody_wants_any():
    turns = SwitchInterval()

    first = turns.shorten(0.002)
    second = turns.shorten(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    second()
    assert sys.getswitchinterval() == pytest.approx(0.002)
    first()
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_it_is_never_made_longer():
    give_back = SwitchInterval().shorten(1.0)

    assert sys.getswitchinterval() == pytest.approx(0.004)
    give_back()
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_what_the_program_sets_in_between_two_workers_is_kept():
    turns = SwitchInterval()
    turns.shorten(0.001)()
    sys.setswitchinterval(0.003)

    give_back = turns.shorten(0.002)
    give_back()

    assert sys.getswitchinterval() == pytest.approx(0.003)
