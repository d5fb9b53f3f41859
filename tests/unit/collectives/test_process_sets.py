"""Process sets: which ranks, and which are refused."""

from __future__ import annotations

import pytest

from lockstitch.collectives.process_sets import ProcessSet, ProcessSets


def test_set_of_all_is_there_from_the_beginning() -> None:
    sets = ProcessSets(3)
    assert sets[0].ranks == (0, 1, 2)
    assert sets.all() == [ProcessSet(0, (0, 1, 2))]


def test_position_counts_inside_the_set() -> None:
    chosen = ProcessSet(4, (1, 3, 5))
    assert (chosen.position(3), chosen.size, chosen.includes(2)) == (1, 3, False)
    with pytest.raises(ValueError, match="rank 2 is not in process set 4"):
        chosen.position(2)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "do not lie"),
        ([0, 3], "do not lie"),
        ([-1], "do not lie"),
        ([1, 1], "twice"),
        ([2, 0, 1], "already"),
    ],
)
def test_impossible_ranks_are_refused(ranks: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ProcessSets(3).checked(ranks)


def test_sets_come_and_go() -> None:
    sets = ProcessSets(3)
    sets.add(ProcessSet(1, sets.checked([2, 0])))
    assert sets[1].ranks == (0, 2)
    sets.remove(1)
    with pytest.raises(ValueError, match="no process set 1; known are"):
        sets[1]
    with pytest.raises(ValueError, match="cannot be removed"):
        sets.remove(0)
