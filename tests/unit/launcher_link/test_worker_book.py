"""What is kept of workers as they change is what one would count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstitch.launcher_link.slots import Slot
from lockstitch.launcher_link.worker_book import KnownWorker, WorkerBook

_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "is_ready": st.booleans(),
        "rank": st.sampled_from([None, 0, 1]),
        "is_in_world": st.booleans(),
        "is_dismissed": st.booleans(),
    },
)
_STEPS = st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), _CHANGES)), max_size=40)


def check(book: WorkerBook) -> None:
    workers = list(book.all.values())
    new = [each for each in workers if each.rank is None and not each.is_dismissed]
    of_hosts = [
        {each.is_ready for each in new if each.slot.host == host}
        for host in {each.slot.host for each in new}
    ]
    assert set(book.in_world.values()) == {each for each in workers if each.is_in_world}
    assert set(book.waiting.values()) == {
        each for each in workers if each.is_ready and not each.is_dismissed
    }
    assert set(book.ready_newcomers.values()) == {each for each in new if each.is_ready}
    assert set(book.with_state.values()) == {
        each for each in workers if each.rank is not None and not each.is_dismissed
    }
    assert set(book.slots) == {each.slot for each in workers}
    assert book.in_use == sum(not each.is_dismissed for each in workers)
    assert book.is_settling == any(states == {True, False} for states in of_hosts)


@given(_STEPS)
def test_counts_are_those_of_a_scan(steps: list[tuple[int, dict[str, object] | None]]) -> None:
    book = WorkerBook()
    for number, change in steps:
        known = book.all.get(number)
        if known is None:
            book.add(KnownWorker(number, Slot(f"h{number % 2}", number // 2), 0.0))
        elif change is None:
            assert book.remove(number) is known
        else:
            book.change(known, **change)
        check(book)


def test_newcomers_are_in_the_order_in_which_they_came_ready() -> None:
    book = WorkerBook()
    workers = [KnownWorker(number, Slot("h", number), 0.0) for number in range(3)]
    for worker in workers:
        book.add(worker)
    for worker in reversed(workers):
        book.change(worker, is_ready=True)
    assert list(book.ready_newcomers) == [2, 1, 0]


def test_one_that_nobody_knows_is_not_struck_out() -> None:
    assert WorkerBook().remove(3) is None
