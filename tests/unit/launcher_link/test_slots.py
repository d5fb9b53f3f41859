"""Slots: which there are, which rest, which are struck out."""

from __future__ import annotations

from lockstitch.launcher_link.slots import Slot, SlotBook

A0, A1, B0 = Slot("a", 0), Slot("a", 1), Slot("b", 0)


def book(most_failures: int = 3, cooldown: tuple[float, float] = (0.0, 0.0)) -> SlotBook:
    slots = SlotBook(most_failures, cooldown)
    slots.note_hosts([("a", 2), ("b", 1)])
    return slots


def test_slots_are_filled_host_by_host() -> None:
    slots = book()
    assert list(slots) == [A0, A1, B0]
    assert len(slots) == 3
    slots.note_hosts([("b", 1), ("a", 1)])
    assert list(slots) == [B0, A0]
    assert A0 in slots
    assert A1 not in slots


def test_slot_is_struck_out_after_so_many_failures() -> None:
    slots = book(most_failures=2)
    slots.note_failure(A0, 0.0, 1.0)
    assert slots.is_open(A0, 1.0)
    slots.note_failure(A0, 1.0, 2.0)
    assert not slots.is_open(A0, 1000.0)
    assert slots.usable == 2


def test_long_life_is_no_failure_of_the_slot() -> None:
    slots = book(most_failures=2)
    slots.note_failure(A0, 0.0, 1.0)
    slots.note_failure(A0, 1.0, 302.0)
    assert slots.is_open(A0, 302.0)


def test_slot_rests_twice_as_long_each_time_up_to_a_bound() -> None:
    slots = book(most_failures=9, cooldown=(10.0, 30.0))
    now = 0.0
    for rest in (10.0, 20.0, 30.0, 30.0):
        slots.note_failure(A0, now, now)
        assert slots.reopenings == [now + rest]
        assert not slots.is_open(A0, now + rest - 1)
        now += rest
        assert slots.is_open(A0, now)
        assert slots.reopenings == []


def test_failures_are_remembered_while_a_host_is_away() -> None:
    slots = book(most_failures=1)
    slots.note_failure(B0, 0.0, 1.0)
    slots.note_hosts([("a", 2)])
    assert B0 not in slots
    slots.note_hosts([("a", 2), ("b", 1)])
    assert not slots.is_open(B0, 1.0)
