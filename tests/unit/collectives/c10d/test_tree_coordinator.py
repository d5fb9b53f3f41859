"""A tree of speakers comes to the conclusions of the one table that hears every rank."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.c10d.messages import (
    ANYTHING,
    Ask,
    Define,
    Detailed,
    Fail,
    Join,
    Joined,
    Leave,
    Loosen,
    Lost,
    Message,
    Missing,
    Order,
    Refused,
    Submit,
)
from lockstitch.collectives.requests import SUM, Description, Kind
from tests.unit.collectives.c10d.trees import Tree, outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator

UNEVEN = (0, 0, 0, 1, 2, 2, 0, 3, 4, 4, 5, 2, 6, 7)
"""Fourteen ranks on eight hosts, none of which has its ranks in a row."""
PART = (1, 2, 5, 7, 8, 12)


def description(name: str, rows: int = 1, kind: Kind = Kind.ALLREDUCE) -> str:
    reduction = SUM if kind is Kind.ALLREDUCE else None
    shapes = () if kind is Kind.BARRIER else ((rows,),)
    dtypes = () if kind is Kind.BARRIER else ("float32",)
    return Description(kind, name, dtypes, shapes, reduction).encode().decode()


def programs(draw: random.Random, size: int, *, with_leaves: bool) -> list[list[Message]]:
    """A program for each rank: the same operations in orders of their own, some of them missing,
    some that do not fit."""
    names = [f"x{number}" for number in range(draw.randint(1, 4))]
    told: list[list[Message]] = []
    is_wrong = draw.random() < 0.4
    for rank in range(size):
        numbers = iter(range(1000))
        steps: list[Message] = []
        sets: set[int] = {0}
        for _ in range(draw.randint(1, 2)):
            epoch: list[list[Message]] = []
            for name in names:
                for again in range(draw.choice([1, 1, 2]) if is_wrong else 1):
                    del again
                    kind = {"x0": Kind.ALLGATHER, "x3": Kind.BARRIER}.get(name, Kind.ALLREDUCE)
                    rows = draw.randint(1, 3) if kind is Kind.ALLGATHER else 1
                    rows += is_wrong and draw.random() < 0.05
                    number = next(numbers)
                    set_id = 7 if name == "x2" and size > max(PART) else 0
                    if set_id and rank not in PART:
                        continue
                    ranks = PART if set_id and set_id not in sets else ()
                    sets.add(set_id)
                    define = Define(number, set_id, ranks, description(name, rows, kind))
                    epoch.append([define, Submit(number)])
            first = [each for group in epoch for each in group if isinstance(each, Define)]
            draw.shuffle(epoch)
            kept = epoch if draw.random() < 0.7 else epoch[: draw.randint(0, len(epoch))]
            steps += first + [group[1] for group in kept]
            if draw.random() < 0.6:
                steps.append(Join())
        if with_leaves and draw.random() < 0.5:
            steps.append(Leave())
        told.append(steps)
    return told


def flat_outcomes(told: list[list[Message]], draw: random.Random) -> list[dict[object, object]]:
    coordinator, heard = Coordinator(len(told), 1), defaultdict(list)
    for rank, message in interleaved(told, draw):
        for addressed in coordinator.hear([(rank, message)]):
            heard[addressed.to].append(addressed.message)
    return [outcomes(heard[rank]) for rank in range(len(told))]


def interleaved(told: list[list[Message]], draw: random.Random) -> Iterator[tuple[int, Message]]:
    left = [list(steps) for steps in told]
    while any(left):
        rank = draw.choice([rank for rank, steps in enumerate(left) if steps])
        yield rank, left[rank].pop(0)


def run(tree: Tree, told: list[list[Message]], draw: random.Random) -> None:
    for rank, message in interleaved(told, draw):
        tree.tell(rank, message)
        for _ in range(draw.randint(0, 6)):
            tree.deliver(draw.choice)
        if draw.random() < 0.1:
            for node, speaker in tree.speakers.items():
                tree.send(node, speaker.pass_time())
    tree.deliver_all(draw.choice)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 3), st.booleans())
def test_tree_decides_as_one_table_does(seed: int, fan_in: int, with_leaves: bool) -> None:
    draw = random.Random(seed)
    hosts = UNEVEN if draw.random() < 0.6 else tuple(range(9))
    told = programs(draw, len(hosts), with_leaves=with_leaves)
    tree = Tree(hosts, fan_in, at_once=draw.choice([1, 1, 4]))
    run(tree, told, draw)
    expected = flat_outcomes(told, draw)
    for rank, heard in enumerate(tree.heard):
        found = outcomes(heard)
        if Leave() in told[rank]:  # whether it hears of what is decided after that is left open
            both = found.keys() & expected[rank].keys()
            assert {key: found[key] for key in both} == {key: expected[rank][key] for key in both}
        else:
            assert found == expected[rank], f"rank {rank}"
        assert not any(isinstance(message, Lost) for message in heard)
    check_one_order(tree, told)
    joins = [[each for each in heard if isinstance(each, Joined)] for heard in tree.heard]
    assert all(each == max(joins, key=len)[: len(each)] for each in joins)


def check_one_order(tree: Tree, told: list[list[Message]]) -> None:
    """What is performed is so in one order on all ranks: no two wait for each other."""
    before: set[tuple[object, object]] = set()
    for rank, heard in enumerate(tree.heard):
        names = {each.number: each for each in told[rank] if isinstance(each, Define)}
        counts: dict[object, int] = defaultdict(int)
        order = []
        for message in heard:
            numbers = message.numbers if isinstance(message, Order) else ()
            if isinstance(message, Detailed) and message.number >= 0:
                numbers = (message.number,)
            for number in numbers:
                define = names[number]
                what = define.set_id, Description.decode(define.content.encode()).name
                counts[what] += 1
                order.append((what, counts[what]))
        before.update(itertools.pairwise(order))
    if not any(isinstance(each, Join) for steps in told for each in steps):
        assert not any((later, earlier) in before for earlier, later in before)


def agreed(tree: Tree, *names: str) -> None:
    for rank in range(len(tree.places)):
        for number, name in enumerate(names):
            tree.tell(rank, Define(number, 0, (), description(name)))


def test_each_speaker_is_told_once_and_operations_are_fused() -> None:
    tree = Tree(UNEVEN, 3, fusion_bytes=1 << 20)
    agreed(tree, "a", "b")
    for rank in range(len(UNEVEN)):
        tree.tell(rank, Submit(0))
        tree.tell(rank, Submit(1))
    tree.deliver_all()
    assert all(outcomes(heard) == {0: "performed", 1: "performed"} for heard in tree.heard)
    root = Tree(UNEVEN, 3, fusion_bytes=1 << 20)
    agreed(root, "a", "b")
    for rank in range(len(UNEVEN)):
        root.tell(rank, Submit(0))
    root.deliver_all()
    count = 0
    for rank in range(len(UNEVEN)):
        root.tell(rank, Submit(1))
    while root.deliver(lambda ways: ways[0]):
        count += 1
    assert count <= 3 * len(UNEVEN)


@pytest.mark.parametrize("last", [0, 2, 5, 13])
def test_the_last_to_join_is_whoever_is_heard_last(last: int) -> None:
    tree = Tree(UNEVEN, 3)
    others = [rank for rank in reversed(range(len(UNEVEN))) if rank != last]
    for rank in (*others, last):
        tree.tell(rank, Join())
        tree.deliver_all()
    assert [heard[-1] for heard in tree.heard] == [Joined(last)] * len(UNEVEN)


def test_what_is_ready_is_ordered_before_speakers_are_told_to_say_again_what_is_not() -> None:
    tree = Tree(UNEVEN, 3)
    agreed(tree, "a")
    tree.deliver_all()
    for rank in range(1, len(UNEVEN)):
        tree.tell(rank, Submit(0))
    tree.deliver_all()
    told = tree.root.hear([(0, Submit(0)), (1, Leave())])
    by_branch = defaultdict(list)
    for to, message in told:
        by_branch[to].append(type(message))
    speakers = tree.places[0].speakers
    assert speakers
    assert all(by_branch[speaker] == [Order, Loosen] for speaker in speakers)


def test_missing_ranks_are_named_once_speakers_have_told_of_them() -> None:
    tree = Tree(UNEVEN, 3)
    agreed(tree, "a")
    missing = (5, 9)
    for rank in range(len(UNEVEN)):
        if rank not in missing:
            tree.tell(rank, Submit(0))
    tree.deliver_all()
    for _ in range(2):
        for node, speaker in tree.speakers.items():
            assert speaker.is_waiting == (node in {4, 8, 3} or speaker.is_waiting)
            tree.send(node, speaker.pass_time())
        tree.deliver_all()
        for node, speaker in tree.speakers.items():
            tree.send(node, speaker.pass_time())
        tree.deliver_all()
    for rank, expected in ((0, missing), (4, missing), (13, missing)):
        tree.tell(rank, Ask(0))
        tree.deliver_all()
        assert tree.heard[rank][-1] == Missing(0, expected)
    for rank in (5, 9, 6):
        tree.tell(rank, Ask(ANYTHING))
        tree.deliver_all()
        assert tree.heard[rank][-1] == Missing(ANYTHING, (rank,) if rank in missing else ())
    for rank in missing:
        tree.tell(rank, Submit(0))
    tree.deliver_all()
    assert all(outcomes(heard) == {0: "performed"} for heard in tree.heard)


@pytest.mark.parametrize("rank", [0, 3, 5, 13])
def test_rank_that_cannot_go_on_is_named_to_all_once(rank: int) -> None:
    tree = Tree(UNEVEN, 3)
    tree.tell(rank, Fail("no more memory"))
    tree.deliver_all()
    for heard in tree.heard:
        assert heard == [Lost(rank, "could not go on: no more memory")]


@pytest.mark.parametrize("rank", [1, 3, 5, 13])
def test_rank_whose_connection_ends_is_named_to_all(rank: int) -> None:
    tree = Tree(UNEVEN, 3)
    node = tree.places[rank].parent
    table = tree.root if node == 0 else tree.speakers[node]
    tree.send(node, table.lost(rank, "died"))
    assert table.lost(rank, "died again") == []
    tree.deliver_all()
    for other, heard in enumerate(tree.heard):
        if other != rank or not tree.places[rank].branches:
            assert Lost(rank, "died") in heard


@pytest.mark.parametrize("rank", [2, 9])
def test_rank_that_says_what_makes_no_sense_is_named(rank: int) -> None:
    tree = Tree(UNEVEN, 3)
    tree.tell(rank, Submit(3))
    tree.deliver_all()
    (lost,) = tree.heard[0]
    assert isinstance(lost, Lost)
    assert (lost.rank, "makes no sense (it names 3, which it has not" in lost.why) == (rank, True)


def test_speaker_that_shuts_down_takes_along_those_for_whom_it_speaks() -> None:
    tree = Tree(UNEVEN, 3)
    agreed(tree, "a")
    tree.deliver_all()
    (speaker,) = (node for node in tree.speakers if UNEVEN[node] == 2)
    below = [rank for rank in range(len(UNEVEN)) if UNEVEN[rank] == 2]
    tree.tell(speaker, Leave())
    tree.deliver_all()
    assert all(each.is_loose for each in tree.speakers.values())
    tree.send(speaker, tree.speakers[speaker].leave())
    tree.deliver_all()
    tree.tell(0, Submit(0))
    tree.deliver_all()
    refused = tree.heard[0][-1]
    assert isinstance(refused, Refused)
    for rank in below:
        assert str(rank) in refused.text
    for rank in below[1:]:
        assert Leave(speaker) in tree.heard[rank]
    assert Loosen() not in tree.heard[1]
