"""Identifiers are unique over ranks and generations, and fit the integers that programs see."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.ids import (
    MAX_GENERATION,
    GlobalId,
    IdSource,
    WorkerId,
    WorkerInfo,
    context_id,
    context_owner,
    greatest_context_id,
)

RANKS = st.integers(0, 2**15 - 1)
GENERATIONS = st.integers(0, MAX_GENERATION)
COUNTERS = st.integers(0, 2**36 - 1)


def test_ids_count_from_the_start_that_was_given() -> None:
    source = IdSource(WorkerId(3, 1), start=5)
    assert [source(), source()] == [GlobalId(3, 1, 5), GlobalId(3, 1, 6)]
    assert source().worker == WorkerId(3, 1)


def test_ids_from_many_threads_are_unique() -> None:
    source = IdSource(WorkerId(0, 0))
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: source(), range(2000)))
    assert len(set(ids)) == 2000


def test_texts_are_those_that_programs_know() -> None:
    assert str(GlobalId(2, 7, 5)) == "GloballyUniqueId(created_on=2, local_id=5)"
    assert str(WorkerId(2, 1)) == "rank 2 (generation 1)"
    assert repr(WorkerInfo("w0", 0)) == "WorkerInfo(id=0, name=w0)"


@given(RANKS, GENERATIONS, COUNTERS)
def test_context_id_tells_its_owner(rank: int, generation: int, counter: int) -> None:
    identifier = context_id(WorkerId(rank, generation), counter)
    assert context_owner(identifier) == WorkerId(rank, generation)
    assert (rank << 48) <= identifier <= greatest_context_id(rank)
    assert identifier < 2**63


@given(st.tuples(RANKS, GENERATIONS, COUNTERS), st.tuples(RANKS, GENERATIONS, COUNTERS))
def test_context_ids_differ_as_their_parts_do(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    ids = [context_id(WorkerId(*parts[:2]), parts[2]) for parts in (one, other)]
    assert (ids[0] == ids[1]) is (one == other)


def test_context_ids_of_the_first_life_are_those_of_torch() -> None:
    assert context_id(WorkerId(2, 0), 5) == (2 << 48) | 5


def test_infos_are_equal_by_name_and_rank_whatever_the_generation() -> None:
    assert WorkerInfo("a", 1, 0) == WorkerInfo("a", 1, 3)
    assert hash(WorkerInfo("a", 1, 0)) == hash(WorkerInfo("a", 1, 3))
    assert WorkerInfo("a", 1) != WorkerInfo("b", 1)
    assert WorkerInfo("a", 1, 3).worker == WorkerId(1, 3)


def test_infos_can_be_pickled_with_their_generation() -> None:
    assert pickle.loads(pickle.dumps(WorkerInfo("a", 1, 3))).worker == WorkerId(1, 3)
