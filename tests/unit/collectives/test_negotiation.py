"""The table of one process set: what follows from what the ranks do, in whatever interleaving."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.collectives.negotiation import (
    AllJoined,
    Joined,
    Left,
    Negotiation,
    Objection,
    Perform,
    Refuse,
    Submitted,
)
from lockstitch.collectives.requests import SUM, Description, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives.negotiation import Event, Instruction

RANKS = (0, 1, 2)


def allreduce(name: str, rows: int = 1) -> Description:
    return Description(Kind.ALLREDUCE, name, ("float32",), ((rows,),), SUM)


def gather(name: str, rows: int = 1) -> Description:
    return Description(Kind.ALLGATHER, name, ("float32",), ((rows,),))


def tell(table: Negotiation, *events: Event) -> list[Instruction]:
    return [answer for event in events for answer in table.handle(event)]


def submit(rank: int, name: str = "a", rows: int = 1) -> Submitted:
    return Submitted(rank, allreduce(name, rows))


def test_operation_is_performed_when_the_last_rank_has_submitted_it() -> None:
    table = Negotiation(RANKS)
    assert tell(table, submit(2), submit(0)) == []
    (answer,) = tell(table, submit(1))
    assert isinstance(answer, Perform)
    assert (answer.name, list(answer.parts)) == ("a", [0, 1, 2])


def test_names_are_decided_independently_of_order() -> None:
    table = Negotiation((0, 1))
    answers = tell(table, submit(0, "a"), submit(0, "b"), submit(1, "b"), submit(1, "a"))
    assert [answer.name for answer in answers] == ["b", "a"]


def test_note_of_each_rank_comes_back() -> None:
    table = Negotiation((0, 1))
    d = allreduce("a")
    (answer,) = tell(table, Submitted(0, d, "zero"), Submitted(1, d, "one"))
    assert [part.note for part in answer.parts.values()] == ["zero", "one"]


def test_name_that_comes_again_meets_its_own_kind() -> None:
    table = Negotiation((0, 1))
    answers = tell(table, submit(0), submit(0), submit(1), submit(1))
    assert [type(answer) for answer in answers] == [Perform, Perform]


def test_mismatch_is_told_once_all_are_there_and_forgotten() -> None:
    table = Negotiation(RANKS)
    assert tell(table, submit(0), submit(1, rows=2)) == []
    (answer,) = tell(table, submit(2))
    assert isinstance(answer, Refuse)
    assert answer.objection == Objection.MISMATCH
    assert "(1,) on ranks 0, 2; (2,) on rank 1" in answer.text
    assert [type(each) for each in tell(table, *map(submit, RANKS))] == [Perform]


def test_joined_rank_is_left_out() -> None:
    table = Negotiation(RANKS)
    (answer,) = tell(table, submit(0), Joined(1, 5), submit(2))
    assert isinstance(answer, Perform)
    assert list(answer.parts) == [0, 2]
    (answer,) = tell(table, submit(0), submit(2))
    assert list(answer.parts) == [0, 2]


def test_last_to_join_is_told_by_time() -> None:
    table = Negotiation(RANKS)
    assert tell(table, Joined(1, 50), Joined(0, 7)) == []
    assert tell(table, Joined(2, 20)) == [AllJoined(1)]
    assert tell(table, submit(0), submit(1)) == []
    assert [type(each) for each in tell(table, submit(2))] == [Perform]


def test_submission_after_all_have_joined_waits_for_the_next_epoch_of_all() -> None:
    # This table hears of rank 0's next life before it hears that rank 2 has joined.
    table = Negotiation(RANKS)
    assert tell(table, Joined(0, 1), Joined(1, 2), submit(0)) == []
    assert tell(table, Joined(2, 3)) == [AllJoined(2)]
    assert [type(each) for each in tell(table, submit(1), submit(2))] == [Perform]


def test_gathering_without_a_joined_rank_is_refused() -> None:
    table = Negotiation((0, 1))
    (answer,) = tell(table, Joined(1, 1), Submitted(0, gather("g")))
    assert isinstance(answer, Refuse)
    assert answer.objection == Objection.JOINED


def test_rows_to_gather_may_differ() -> None:
    table = Negotiation((0, 1))
    (answer,) = tell(table, Submitted(0, gather("g", 1)), Submitted(1, gather("g", 9)))
    assert isinstance(answer, Perform)


def test_rank_that_left_refuses_what_waits_for_it_now_and_later() -> None:
    table = Negotiation((0, 1))
    assert tell(table, submit(0, "waiting")) == []
    (answer,) = tell(table, Left(1))
    assert (answer.name, answer.objection) == ("waiting", Objection.LEFT)
    (answer,) = tell(table, submit(0, "later"))
    assert answer.objection == Objection.LEFT


def test_what_a_rank_submitted_before_it_left_is_performed() -> None:
    table = Negotiation((0, 1))
    (answer,) = tell(table, submit(1), Left(1), submit(0))
    assert isinstance(answer, Perform)


def test_missing_ranks_are_named() -> None:
    table = Negotiation(RANKS)
    tell(table, submit(1))
    assert table.missing("a", 1) == (0, 2)
    assert [(w.name, w.submitted, w.missing) for w in table.waiting()] == [("a", (1,), (0, 2))]
    assert table.missing("b", 1) == ()
    assert table.not_joined() == RANKS


# ---------------------------------------------------------------- any program, any interleaving


def histories(seed: int, size: int) -> list[list[Event]]:
    """What each rank does, in its own order: rounds of submissions, some of them at odds with each
    other, and a join after each round, before which some ranks have less to do than others."""
    chance = random.Random(seed)
    done: list[list[Event]] = [[] for _ in range(size)]
    for turn in range(chance.randint(1, 3)):
        names = [f"{turn}.{index % 4}" for index in range(chance.randint(0, 6))]
        is_even = chance.random() < 0.5
        for rank in range(size):
            own = Counter(names[: len(names) if is_even else chance.randint(0, len(names))])
            order = list(own.elements())
            chance.shuffle(order)
            for name in order:
                rows = 2 if chance.random() < 0.1 else 1
                done[rank].append(Submitted(rank, allreduce(name, rows)))
            done[rank].append(Joined(rank, chance.randint(0, 9)))
    return done


def interleaved(history: Sequence[Sequence[Event]], chance: random.Random) -> list[Event]:
    left = [list(events) for events in history]
    order = []
    while any(left):
        order.append(chance.choice([events for events in left if events]).pop(0))
    return order


def conclusions(answers: list[Instruction]) -> Counter[object]:
    found: Counter[object] = Counter()
    for answer in answers:
        if isinstance(answer, AllJoined):
            found["joined", answer.last] += 1
        else:
            parts = tuple((rank, part.description) for rank, part in answer.parts.items())
            found[type(answer).__name__, answer.name, parts, getattr(answer, "text", "")] += 1
    return found


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(0, 10**6))
def test_all_ranks_come_to_the_same_conclusions(seed: int, size: int, order: int) -> None:
    history = histories(seed, size)
    tables = []
    for own in range(3):
        table = Negotiation(range(size))
        chance = random.Random(order + own)
        tables.append(conclusions(tell(table, *interleaved(history, chance))))
        assert table.waiting() == []  # nobody waits for ever
    assert tables[0] == tables[1] == tables[2]


@given(st.permutations(list(range(12))))
def test_one_set_never_waits_for_another(order: list[int]) -> None:
    tables = {0: Negotiation((0, 1)), 1: Negotiation((1, 2))}
    events = [(s, submit(r + s, f"n{n}")) for s in (0, 1) for r in (0, 1) for n in range(3)]
    decided = Counter(
        set_id
        for index in order
        for set_id in [events[index][0]]
        for _ in tables[set_id].handle(events[index][1])
    )
    assert decided == {0: 3, 1: 3}


def test_repr_tells_how_many_wait() -> None:
    table = Negotiation(RANKS)
    tell(table, submit(0))
    assert repr(table) == "<Negotiation of 3 ranks · 1 waiting>"


@pytest.mark.parametrize("kind", [Kind.BARRIER, Kind.ALLREDUCE])
def test_barriers_and_allreduces_go_on_without_joined_ranks(kind: Kind) -> None:
    table = Negotiation((0, 1))
    (answer,) = tell(table, Joined(1, 1), Submitted(0, Description(kind, "x", reduction=SUM)))
    assert isinstance(answer, Perform)
