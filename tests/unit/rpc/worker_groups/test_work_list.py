"""The bookkeeping of a map: who gets what, what becomes of failures, and of the dead."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.rpc.worker_groups.work_list import WorkList


def handed(work: WorkList[str]) -> list[tuple[str, int]]:
    """All that can be handed out now."""
    out = []
    while (following := work.hand_out()) is not None:
        out.append(following[:2])
    return out


def test_next_item_goes_to_whoever_is_free() -> None:
    work: WorkList[str] = WorkList("abcde", ["fast", "slow"], 1, reassigns=False)
    assert handed(work) == [("fast", 0), ("slow", 1)]
    work.note_result(0, "A")
    assert handed(work) == [("fast", 2)]
    work.note_result(2, "C")
    assert handed(work) == [("fast", 3)]
    work.note_result(3, "D")
    work.note_result(1, "B")
    assert handed(work) == [("fast", 4)]
    work.note_result(4, "E")
    assert work.in_order() == list("ABCDE")


def test_items_are_taken_as_they_are_needed() -> None:
    items = count()
    work: WorkList[str] = WorkList(items, ["one", "other"], 2, reassigns=False)
    assert len(handed(work)) == 4
    assert next(items) == 4


def test_after_a_failure_nothing_is_handed_out() -> None:
    work: WorkList[str] = WorkList("abcd", ["one", "other"], 1, reassigns=True)
    handed(work)
    work.note_error(0, KeyError(), is_dead=False)
    work.note_result(1, "B")
    assert handed(work) == []
    assert (list(work.errors), work.results) == ([0], {1: "B"})


def test_item_of_the_dead_goes_to_others_only_when_asked() -> None:
    for reassigns in (False, True):
        work: WorkList[str] = WorkList("abc", ["one", "other"], 1, reassigns=reassigns)
        handed(work)
        work.note_error(0, KeyError(), is_dead=True)
        work.note_result(1, "B")
        assert handed(work) == ([("other", 0)] if reassigns else [])
        assert list(work.errors) == ([] if reassigns else [0])


def test_last_one_that_dies_fails_its_item() -> None:
    work: WorkList[str] = WorkList("abc", ["one", "other"], 1, reassigns=True)
    handed(work)
    work.note_error(1, KeyError(1), is_dead=True)
    work.note_error(0, KeyError(0), is_dead=True)
    assert 0 in work.errors
    assert handed(work) == []
    assert len(work) == 0


@given(st.data())
def test_every_item_ends_once_whatever_happens(data: st.DataObject) -> None:
    workers = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    total, in_flight = data.draw(st.integers(0, 8)), data.draw(st.integers(1, 2))
    reassigns = data.draw(st.booleans())
    work: WorkList[str] = WorkList(range(total), workers, in_flight, reassigns=reassigns)
    dead: set[str] = set()
    under_way: dict[int, Any] = {}
    runs = [0] * total

    def hand_out() -> None:
        for worker, index in handed(work):
            assert worker not in dead
            assert index not in under_way
            under_way[index] = worker
            runs[index] += 1
            assert list(under_way.values()).count(worker) <= in_flight

    hand_out()
    while under_way:
        assert len(work) == len(under_way)
        index = data.draw(st.sampled_from(sorted(under_way)))
        worker = under_way.pop(index)
        outcome = (
            "dies" if worker in dead else data.draw(st.sampled_from(["ends", "fails", "dies"]))
        )
        if outcome == "ends":
            work.note_result(index, -index)
        else:
            if outcome == "dies":
                dead.add(worker)
            work.note_error(index, KeyError(index), is_dead=outcome == "dies")
        hand_out()
    assert not work.results.keys() & work.errors.keys()
    if not work.errors:
        assert work.in_order() == [-index for index in range(total)]
    if not reassigns:
        assert max(runs, default=0) <= 1
    assert work.errors or not dead or reassigns
