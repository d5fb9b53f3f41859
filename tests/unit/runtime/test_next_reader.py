"""Who reads next: the tables, and all orders of the steps in which threads use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.runtime.next_reader import ACTIONS, Action, Event, Successor, Watch, due, successor
from tests.unit.runtime import reading_model
from tests.unit.runtime.reading_model import State, following, start

if TYPE_CHECKING:
    from collections.abc import Iterator


def unread(first: State) -> State | None:
    """A state that can be reached from `first`, in which no thread has anything left to do although
    an answer was not read."""
    seen, left = {first}, [first]
    while left:
        state = left.pop()
        new = set(following(state))
        if not new and (state.pending or state.arrived or state.received):
            return state
        left += new - seen
        seen |= new
    return None


# Waiting threads, threads that do not wait, those that want their answer at once, interrupts.
FEW = [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (1, 1, 0, 1)]
MORE = [(2, 0, 0, 1), (2, 0, 0, 2), (1, 0, 1, 1), (2, 1, 0, 0), (1, 1, 1, 0)]


@pytest.mark.parametrize("threads", FEW)
def test_in_no_order_of_steps_an_answer_lies_unread(threads: tuple[int, ...]) -> None:
    assert unread(start(*threads)) is None


@pytest.mark.slow
@pytest.mark.parametrize("threads", MORE)
def test_nor_with_more_threads(threads: tuple[int, ...]) -> None:
    assert unread(start(*threads)) is None


@given(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)),
    st.randoms(use_true_random=False),
)
def test_nor_with_many_in_orders_drawn_at_random(threads: tuple[int, ...], random) -> None:  # type: ignore[no-untyped-def]
    state = start(*threads)
    while new := list(following(state)):
        state = random.choice(new)
    assert (state.pending, state.arrived, state.received) == (set(), (), ())
    assert len(state.done) == sum(threads[:3])


# Where a check is due anyhow, to arm at once is a matter of time alone.
NEEDED = [
    (Event.EXPECT, Watch.IDLE),
    (Event.DEMAND, Watch.IDLE),
]


@pytest.mark.parametrize("needed", NEEDED)
def test_without_any_one_of_the_actions_some_would(
    needed: tuple[Event, Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = [
        [Action.NOTHING if (event, watch) == needed else ACTIONS[event][watch] for watch in Watch]
        for event in Event
    ]
    monkeypatch.setattr(reading_model, "ACTIONS", table)
    assert any(unread(start(*threads)) for threads in FEW)


@pytest.mark.parametrize("missing", [Successor.FOLLOWER, Successor.POOL_NOW, Successor.POOL_LATER])
def test_without_any_one_of_the_successors_some_would(
    missing: Successor, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {
        Successor.FOLLOWER: "wake",
        Successor.POOL_NOW: "look_for_left_over",
        Successor.POOL_LATER: "expect",
    }[missing]
    carry_out = reading_model.STEPS[step]

    def leave_out(state: State, me: int, *rest):  # type: ignore[no-untyped-def]
        if missing is Successor.POOL_NOW and not state.received:
            yield from carry_out(state, me, *rest)
        else:
            yield state.go(me, *rest[-1])

    monkeypatch.setitem(reading_model.STEPS, step, leave_out)
    assert any(unread(start(*threads)) for threads in FEW)


def test_if_the_pools_reader_struck_out_the_note_afterwards_some_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serve(state: State, me: int) -> Iterator[State]:
        yield state.go(me, "serve_2")

    def end_of_serving(state: State, me: int) -> Iterator[State]:
        if state.arming == reading_model.NOBODY:
            yield state.go(me, "pool", is_armed=False, is_polled=False)

    monkeypatch.setitem(reading_model.STEPS, "serve", serve)
    monkeypatch.setitem(reading_model.STEPS, "end_of_serving", end_of_serving)
    assert any(unread(start(*threads)) for threads in FEW)


# -------------------------------------------------------------------- the tables


def test_the_table_has_an_action_for_each_event_in_each_state() -> None:
    assert [len(row) for row in ACTIONS] == [len(Watch)] * len(Event)
    assert ACTIONS[Event.EXPECT][Watch.IDLE] is Action.ASK_LATER
    assert ACTIONS[Event.DEMAND][Watch.SCHEDULED] is Action.ARM
    assert {row[Watch.ARMED] for row in ACTIONS} == {Action.NOTHING}


def never() -> bool:
    raise AssertionError("whoever asks announces that it goes to sleep")


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_follower_comes_first(is_closed: bool) -> None:
    who = successor(has_follower=True, is_closed=is_closed, is_left_over=never)
    assert who is Successor.FOLLOWER


def test_nobody_reads_a_closed_connection() -> None:
    assert successor(has_follower=False, is_closed=True, is_left_over=never) is Successor.NOBODY


@pytest.mark.parametrize(
    ("is_left_over", "who"), [(True, Successor.POOL_NOW), (False, Successor.POOL_LATER)]
)
def test_what_is_left_over_is_read_at_once(is_left_over: bool, who: Successor) -> None:
    found = successor(has_follower=False, is_closed=False, is_left_over=lambda: is_left_over)
    assert found is who


def test_a_check_is_put_off_while_the_caller_is_busy_but_not_for_ever() -> None:
    assert due(is_busy=True, deferrals_left=1) is Event.EXPECT
    assert due(is_busy=True, deferrals_left=0) is Event.DEMAND
    assert due(is_busy=False, deferrals_left=5) is Event.DEMAND
