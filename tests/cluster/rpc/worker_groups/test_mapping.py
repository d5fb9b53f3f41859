"""`map`: every item once, in order; stragglers get less; what fails is told by its index."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import GroupError, PeerDiedError
from lockstitch.rpc.worker_groups.work_list import WorkList

HELD = threading.Event()
DONE: list[tuple[str, int]] = []


def square(item: int) -> int:
    return item * item


async def square_later(item: int) -> int:
    return item * item


def hold_first(item: int) -> str:
    """Item 0 is held until all others are done."""
    if item == 0:
        HELD.wait(30)
    elif item == 19:
        HELD.set()
    return rpc.get_worker_info().name


def fail_at(item: int) -> int:
    """Items behind the one that fails are held until the caller knows of that."""
    if item == 3:
        raise KeyError(item)
    if item > 3:
        HELD.wait(30)
    return item


def die_at(item: int) -> str:
    """The worker that gets item 2 answers no more."""
    if item == 2 and rpc.get_worker_info().name == "worker2":
        HELD.wait(30)
    return rpc.get_worker_info().name


@pytest.fixture(autouse=True)
def _free() -> None:
    HELD.clear()


@pytest.mark.parametrize("function", [square, square_later])
@pytest.mark.parametrize("in_flight", [1, 3])
def test_results_are_in_the_order_of_items(cluster, function, in_flight) -> None:
    items = (n for n in range(25))
    assert rpc.group().map(function, items, in_flight=in_flight) == [n * n for n in range(25)]
    assert rpc.group().map(function, []) == []


def test_slow_worker_gets_less(cluster) -> None:
    names = rpc.group().map(hold_first, range(20))
    assert names.count(names[0]) == 1


def test_failure_ends_the_handing_out_and_keeps_results(cluster, monkeypatch) -> None:
    note_error = WorkList.note_error

    def note_and_release(*args, **kwargs) -> None:
        note_error(*args, **kwargs)
        HELD.set()

    monkeypatch.setattr(WorkList, "note_error", note_and_release)
    with pytest.raises(GroupError, match="items of the map failed .3: KeyError") as raised:
        rpc.group()[:2].map(fail_at, range(100), in_flight=1)
    assert list(raised.value.errors) == [3]
    results = raised.value.results
    assert results in ({0: 0, 1: 1, 2: 2}, {0: 0, 1: 1, 2: 2, 4: 4})


def test_item_that_cannot_be_sent_is_raised_at_once(cluster) -> None:
    with pytest.raises(RuntimeError, match="cannot send a call of square"):
        rpc.group().map(square, [1, threading.Lock()])


def test_items_that_raise_end_it(cluster) -> None:
    def items():
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        rpc.group().map(square, items())


def test_bad_in_flight_is_refused(cluster) -> None:
    with pytest.raises(ValueError, match="how many items a worker has at a time, not 0"):
        rpc.group().map(square, [1], in_flight=0)


@pytest.mark.parametrize("reassign", [False, True])
def test_item_of_a_dead_worker_goes_to_others_only_when_asked(cluster, reassign) -> None:
    group = rpc.group(["worker1", "worker2", "worker3"])
    group.call(square, (1,))
    killer = threading.Timer(0.2, lambda: cluster.kill("worker2"))
    killer.start()
    try:
        # Items 0 to 2 go to the workers by rank: worker2 gets the second; it is handed 2 later, or
        # another one does. So each gets the item that holds it.
        items = [0, 2, 1]
        if reassign:
            names = group.map(die_at, items, reassign=True)
            assert names[1] in ("worker1", "worker3")
        else:
            with pytest.raises(GroupError) as raised:
                group.map(die_at, items)
            assert isinstance(raised.value.errors[1], PeerDiedError)
            assert sorted(raised.value.results) == [0, 2]
    finally:
        HELD.set()
        killer.join()


def test_gradient_goes_through_every_item(cluster) -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    with autograd.context() as context_id:
        items = [weight * n for n in range(5)]
        total = torch.stack(rpc.group().map(square, items)).sum()
        autograd.backward(context_id, [total])
        gradient = autograd.get_gradients(context_id)[weight]
    assert gradient.item() == sum(2 * n * n * 3 for n in range(5))
