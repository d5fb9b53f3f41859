from __future__ import annotations

from lockstitch.ids import WorkerId
from lockstitch.rref.dead_workers import GRACE_SECONDS, DeadWorkers, RecentlyDead

FIRST_LIFE, SECOND_LIFE = WorkerId(3, 0), WorkerId(3, 1)


def test_a_replacement_of_a_dead_worker_is_alive():
    dead = DeadWorkers()
    dead.add(FIRST_LIFE)
    assert FIRST_LIFE in dead
    assert SECOND_LIFE not in dead


def test_the_death_of_a_replacement_does_not_bring_its_predecessor_back():
    dead = DeadWorkers()
    dead.add(SECOND_LIFE)
    dead.add(FIRST_LIFE)
    assert FIRST_LIFE in dead
    assert SECOND_LIFE in dead


def test_nobody_in_particular_is_not_dead():
    assert None not in DeadWorkers()


def test_mourning_is_over_once_after_the_grace_counted_from_the_first_tick():
    mourning = RecentlyDead()
    mourning.add(FIRST_LIFE)
    assert mourning.over(100.0) == set()
    assert mourning.over(100.0 + GRACE_SECONDS - 0.1) == set()
    assert mourning.over(100.0 + GRACE_SECONDS) == {FIRST_LIFE}
    assert len(mourning) == 0
