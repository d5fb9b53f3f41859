"""Every table can be carried out, and does everything once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies

from lockstitch.nn.pipelining.schedules import (
    Action,
    Schedule,
    forward_only,
    make_schedule,
    most_live,
)
from lockstitch.nn.pipelining.simulation import simulate


def round_robin(workers: int, rounds: int) -> tuple[int, ...]:
    return tuple(range(workers)) * rounds


@strategies.composite
def schedules(draw) -> Schedule:
    name = draw(strategies.sampled_from(["1f1b", "gpipe", "zero_bubble", "interleaved"]))
    if name == "interleaved":
        workers, rounds = draw(strategies.integers(1, 5)), draw(strategies.integers(1, 4))
        placement = round_robin(workers, rounds)
        chunks = len(placement) + workers * draw(strategies.integers(0, 4))
    else:
        order = draw(strategies.lists(strategies.integers(0, 4), min_size=1, max_size=8))
        used = list(dict.fromkeys(order))
        placement = tuple(used.index(worker) for worker in order)
        chunks = len(placement) + draw(strategies.integers(0, 10))
    return make_schedule(name, placement, chunks)


@given(schedules())
def test_each_stage_works_once_on_each_micro_batch(schedule):
    done = Counter(action for row in schedule.rows for action in row)
    works = "FIW" if schedule.name == "zero_bubble" else "FB"
    assert done == {
        Action(work, stage, number): 1
        for work in works
        for stage in range(schedule.stages)
        for number in range(schedule.chunks)
    }


@given(schedules())
def test_each_stage_is_in_the_row_of_its_worker(schedule):
    for worker, row in enumerate(schedule.rows):
        assert {schedule.placement[action.stage] for action in row} == {worker}


@given(schedules())
def test_what_an_action_needs_comes_before_it(schedule):
    spans = {span.action: span for row in simulate(schedule, lambda _: 1.0) for span in row}
    for action, span in spans.items():
        for needed in schedule.needs(action):
            assert spans[needed].end <= span.begin


@given(schedules())
def test_micro_batches_come_in_ascending_order(schedule):
    for row in schedule.rows:
        for key in {(action.work, action.stage) for action in row}:
            numbers = [each.micro_batch for each in row if (each.work, each.stage) == key]
            assert numbers == sorted(numbers)


@given(strategies.integers(1, 6), strategies.integers(0, 12), strategies.booleans())
def test_1f1b_and_zero_bubble_keep_no_more_activations_than_there_are_stages(p, more, splits):
    schedule = make_schedule("zero_bubble" if splits else "1f1b", range(p), p + more)
    for worker, row in enumerate(schedule.rows):
        assert most_live(row) == {worker: p if splits else p - worker}


def test_gpipe_keeps_all():
    assert most_live(make_schedule("gpipe", range(3), 7).rows[2]) == {2: 7}


def row(text: str, stage: int) -> tuple[Action, ...]:
    return tuple(Action(each[0], stage, int(each[1:])) for each in text.split())  # type: ignore[arg-type]


def test_1f1b_of_three_stages_is_that_of_the_paper():
    assert make_schedule("1f1b", range(3), 4).rows == (
        row("F0 F1 F2 B0 F3 B1 B2 B3", 0),
        row("F0 F1 B0 F2 B1 F3 B2 B3", 1),
        row("F0 B0 F1 B1 F2 B2 F3 B3", 2),
    )


def test_zero_bubble_of_three_stages_puts_parameters_where_gradients_are_waited_for():
    assert make_schedule("zero_bubble", range(3), 4).rows == (
        row("F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3", 0),
        row("F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3", 1),
        row("F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3", 2),
    )


def test_interleaved_goes_through_all_rounds_in_groups():
    first = make_schedule("interleaved", round_robin(2, 2), 4).rows[0]
    forward = [(each.stage, each.micro_batch) for each in first if each.work == "F"]
    assert forward == [(0, 0), (0, 1), (2, 0), (2, 1), (0, 2), (0, 3), (2, 2), (2, 3)]


def test_evaluation_goes_forward_only():
    schedule = forward_only((0, 1, 0), 2)
    assert {action.work for each in schedule.rows for action in each} == {"F"}
    simulate(schedule, lambda _: 1.0)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "zero_bubble"])
def test_fewer_micro_batches_than_stages_are_refused(name):
    with pytest.raises(ValueError, match="2 micro-batches are fewer than the 3 stages"):
        make_schedule(name, range(3), 2)


def test_an_unknown_schedule_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="'1f1b', 'gpipe', 'interleaved', 'zero_bubble', not '1F'"):
        make_schedule("1F", range(3), 4)  # type: ignore[arg-type]


def test_interleaving_wants_stages_that_go_round():
    with pytest.raises(ValueError, match=r"stage s on worker s mod 2, but they are on .*\[0, 0, 1"):
        make_schedule("interleaved", (0, 0, 1, 1), 4)


def test_interleaving_wants_multiples():
    with pytest.raises(ValueError, match="multiples of the 2 workers, not 4 stages and 5"):
        make_schedule("interleaved", (0, 1, 0, 1), 5)
