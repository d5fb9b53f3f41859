"""Ranges of one piece of memory: none overlaps another, and none is lost."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lockstitch.memory.arena import Arena, ArenaFullError

CAPACITY = 1 << 16


def test_latest_given_back_is_taken_first() -> None:
    arena = Arena(1 << 20)
    places = [arena.take(1000) for _ in range(3)]
    for place in places:
        arena.give_back(place)
    assert [arena.take(1000) for _ in range(3)] == places[::-1]


def test_nothing_lies_at_nowhere() -> None:
    assert Arena(1 << 20).take(1) > 0


def test_full_arena_says_so_until_something_is_given_back() -> None:
    arena = Arena(4096)
    place = arena.take(2000)
    with pytest.raises(ArenaFullError):
        arena.take(3000)
    arena.give_back(place)
    assert arena.take(2000) == place


def test_what_ends_a_lease_is_free_at_the_next_turn() -> None:
    arena = Arena(1 << 20)
    place = arena.take(500)
    lease = arena.lease(place)
    assert arena.take(500) != place
    del lease
    assert arena.take(500) == place
    assert len(arena) == 2


class Handing(RuleBasedStateMachine):
    """Ranges are taken, given back, and let go of by finalizers, in any order."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(CAPACITY)
        self.held: dict[int, int] = {}
        self.dropped: set[int] = set()

    @rule(target=taken, size=st.integers(0, 5000))
    def take(self, size: int):
        self.dropped.clear()
        try:
            place = self.arena.take(size)
        except ArenaFullError:
            return None
        assert place % 64 == 0
        assert place + size <= CAPACITY
        for other, length in self.held.items():
            assert place + size <= other or other + length <= place
        self.held[place] = max(size, 1)
        return place

    @rule(place=consumes(taken))
    def give_back(self, place) -> None:
        if place is not None:
            del self.held[place]
            self.arena.give_back(place)

    @rule(place=consumes(taken))
    def let_go(self, place) -> None:
        if place is not None:
            self.arena.lease(place)
            del self.held[place]
            self.dropped.add(place)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.arena) == len(self.held) + len(self.dropped)

    def teardown(self) -> None:
        self.arena.collect()
        for place in self.held:
            self.arena.give_back(place)
        assert len(self.arena) == 0


TestHanding = Handing.TestCase
