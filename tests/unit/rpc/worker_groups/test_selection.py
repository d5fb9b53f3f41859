"""Names, patterns, ranks and infos; each bad one with an error that says who is there."""

from __future__ import annotations

import pytest

from lockstitch.ids import WorkerInfo
from lockstitch.rpc.worker_groups.selection import in_order, select

PRESENT = [
    WorkerInfo("trainer10", 3),
    WorkerInfo("ps", 0),
    WorkerInfo("trainer1", 1, 2),
    WorkerInfo("trainer2", 2),
]


def names(workers) -> list[str]:
    return [info.name for info in select(PRESENT, workers)]


@pytest.mark.parametrize(
    ("workers", "chosen"),
    [
        (None, ["ps", "trainer1", "trainer2", "trainer10"]),
        ("ps", ["ps"]),
        ("*", ["ps", "trainer1", "trainer2", "trainer10"]),
        ("trainer?", ["trainer1", "trainer2"]),
        ("trainer[2-9]", ["trainer2"]),
        (2, ["trainer2"]),
        (["trainer10", "ps"], ["ps", "trainer10"]),
        (("trainer1*", 0), ["ps", "trainer1", "trainer10"]),
        (PRESENT[1], ["ps"]),
        ((info for info in PRESENT[:2]), ["ps", "trainer10"]),
    ],
)
def test_workers_are_chosen_in_the_order_of_their_ranks(workers, chosen) -> None:
    assert names(workers) == chosen


@pytest.mark.parametrize(
    ("workers", "error", "text"),
    [
        ("actor*", ValueError, "has a name like 'actor.'; there are 'ps', 'trainer1'"),
        ("actor", ValueError, "no worker is named 'actor'; there are 'ps', 'trainer1'"),
        ("", ValueError, "is named ''"),
        (7, ValueError, "no worker has rank 7; there are 'ps'"),
        ([], ValueError, "none is named; there are 'ps'"),
        (["ps", "p*"], ValueError, "'ps' is in the group twice: by 'ps' and by 'p.'"),
        (["ps", "ps"], ValueError, "'ps' is in the group twice"),
        (WorkerInfo("trainer1", 1, 1), ValueError, "another life of it"),
        (True, TypeError, "not of True, a bool"),
        (2.5, TypeError, "not of 2.5"),
        ([None], TypeError, "not of None, a NoneType"),
    ],
)
def test_bad_choice_says_what_there_is(workers, error, text) -> None:
    with pytest.raises(error, match=text):
        select(PRESENT, workers)


def test_large_world_is_not_listed_as_a_whole() -> None:
    present = [WorkerInfo(f"w{rank}", rank) for rank in range(100)]
    with pytest.raises(ValueError, match="and 68 more"):
        select(present, "x")


def test_order_is_that_of_ranks() -> None:
    assert [info.id for info in in_order(PRESENT)] == [0, 1, 2, 3]
