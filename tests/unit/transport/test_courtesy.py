"""When a spinner offers its CPU from the start, and when it sleeps instead."""

from __future__ import annotations

import itertools

import pytest

from lockstitch.transport.courtesy import Courtesy

MILLISECOND, TENTH = 1e-3, 1e-4


def rests(courtesy: Courtesy, begin: float, seconds: float) -> list[float]:
    """Others run on the CPU whenever it is offered; after how many milliseconds each rest
    begins."""
    begins = []
    for step in range(int(seconds / TENTH)):
        now = begin + step * TENTH
        if now < courtesy.rests_until:
            continue
        courtesy.note_long_yield(now)
        if now < courtesy.rests_until:
            assert courtesy.rests_until - now == pytest.approx(3 * MILLISECOND)
            begins.append((now - begin) / MILLISECOND)
        else:
            assert courtesy.offers_until - now == pytest.approx(5 * MILLISECOND)
    return begins


def test_nothing_is_offered_where_nobody_wants_it():
    assert Courtesy().offers_until == Courtesy().rests_until == 0.0


def test_after_a_while_it_rests_and_ever_later():
    begins = rests(Courtesy(), 1.0, 0.3)
    between = [later - each for each, later in itertools.pairwise([-3, *begins])]
    assert between == pytest.approx([8, 13, 23, 43, 83, 83], abs=1)


def test_who_has_had_a_cpu_for_a_while_begins_anew():
    courtesy = Courtesy()
    first = rests(courtesy, 1.0, 0.2)
    assert rests(courtesy, 1.3, 0.2) == pytest.approx(first, abs=0.3)
