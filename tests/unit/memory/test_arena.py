"""Room in a rank's arena."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.memory.arena import Arena, ArenaFullError, rounded_up


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


def test_what_a_finalizer_drops_is_free_at_the_next_turn() -> None:
    arena = Arena(1 << 20)
    place = arena.take(500)
    arena.drop(place)
    assert arena.take(500) == place
    assert len(arena) == 1


@given(st.integers(0, 1 << 40))
def test_rounding_wastes_little(size: int) -> None:
    rounded = rounded_up(size)
    assert rounded >= size
    assert rounded % 64 == 0
    assert rounded <= max(256, size * 1.13 + 64)
    assert rounded_up(rounded) == rounded


@given(st.lists(st.one_of(st.integers(0, 5000), st.none()), max_size=60))
def test_ranges_never_overlap(steps: list[int | None]) -> None:
    arena = Arena(1 << 20)
    held: dict[int, int] = {}
    for size in steps:
        if size is None and held:
            place = min(held)
            del held[place]
            arena.give_back(place)
        elif size is not None:
            place = arena.take(size)
            assert place % 64 == 0
            for other, length in held.items():
                assert place + size <= other or other + length <= place
            held[place] = max(size, 1)
