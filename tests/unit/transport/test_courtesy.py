"""When a spinner offers its CPU from the start, and when it keeps it whatever that costs."""

from __future__ import annotations

import itertools

import pytest

from lockstitch.transport.courtesy import Courtesy

MILLISECOND, TENTH = 1e-3, 1e-4


def trials(courtesy: Courtesy, begin: float, seconds: float) -> list[float]:
    """Somebody else runs on the CPU all the time; after how many milliseconds it is kept, each time
    for about three."""
    begins, kept_since = [], None
    for step in range(int(seconds / TENTH)):
        now = begin + step * TENTH
        courtesy.note_long_yield(now)
        if courtesy.is_due(now + TENTH / 2):
            if kept_since is not None:
                assert now - kept_since == pytest.approx(3 * MILLISECOND, abs=2 * TENTH)
            kept_since = None
        elif kept_since is None:
            kept_since = now
            begins.append((now - begin) / MILLISECOND)
    return begins


def test_the_cpu_is_kept_where_nobody_wants_it():
    assert not Courtesy().is_due(0.0)


def test_who_has_let_others_run_is_courteous_for_five_milliseconds():
    courtesy = Courtesy()
    courtesy.note_long_yield(1.0)
    assert courtesy.is_due(1.0 + 4.9 * MILLISECOND)
    assert not courtesy.is_due(1.0 + 5.1 * MILLISECOND)


def test_after_a_while_it_tries_to_keep_the_cpu_and_ever_later():
    begins = trials(Courtesy(), 1.0, 0.3)
    between = [later - each for each, later in itertools.pairwise([-3, *begins])]
    assert between == pytest.approx([8, 13, 23, 43, 83, 83], abs=1)


def test_who_has_had_a_cpu_for_a_while_begins_anew():
    courtesy = Courtesy()
    first = trials(courtesy, 1.0, 0.2)
    assert trials(courtesy, 1.3, 0.2) == pytest.approx(first, abs=0.3)
