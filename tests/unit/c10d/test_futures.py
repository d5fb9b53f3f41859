"""Futures of works: their callbacks, and what these are called on all ranks."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.c10d.futures import WorkFuture, queue_of_callback
from lockstitch.torch_internals.calls import set_unwrap_function

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def asked(_done: torch.futures.Future[Any]) -> str:
    return queue_of_callback()


@pytest.mark.parametrize("is_done_before", [False, True])
def test_callbacks_have_names_wherever_and_whenever_they_run(is_done_before: bool) -> None:
    future, noted = WorkFuture("0:7"), []
    if is_done_before:
        future.set_result(3)
    first, second = future.then(asked), future.then(asked)
    future.add_done_callback(lambda done: noted.append((queue_of_callback(), done.value())))
    chained = first.then(asked).then(asked)
    if not is_done_before:
        future.set_result(3)
    assert (first.wait(), second.wait(), chained.wait()) == ("0:7.1", "0:7.2", "0:7.1.1.1")
    assert noted == [("0:7.3", 3)]
    assert queue_of_callback() == ""


def test_an_error_is_raised_for_whoever_asks_and_for_whoever_looks_for_tensors() -> None:
    future = WorkFuture("0:7")
    before = future.then(lambda done: done.value())
    future.set_exception(KeyError("bad shard"))
    after = future.then(lambda done: done.value())
    for each in (future, before, after, before.then(lambda done: done.wait())):
        with pytest.raises(KeyError, match="bad shard"):
            each.wait()
        with pytest.raises(KeyError, match="bad shard"):
            each.value()
    told = []
    future.add_done_callback(lambda done: told.append(pickled(done)))
    future.add_done_callback(lambda done: told.append(pickled(done, repr)))
    assert told == ["KeyError('bad shard')"] * 2


def pickled(done: torch.futures.Future[Any], take: Callable[[Any], object] = pickle.dumps) -> str:
    """What pickling the value itself raises, as the reducer of DistributedDataParallel does it, or
    writing it into a message, as it does with what is no tensor."""
    set_unwrap_function(done, take)
    try:
        done.value()
    except KeyError as error:
        return repr(error)
    return ""


def test_callback_within_a_callback_leaves_the_outer_one_its_name() -> None:
    def outer(_done: torch.futures.Future[Any]) -> tuple[str, str]:
        inner = WorkFuture(f"{queue_of_callback()}:1")
        inner.set_result(None)
        return inner.then(asked).wait(), queue_of_callback()

    future = WorkFuture("0:7")
    future.set_result(None)
    assert future.then(outer).wait() == ("0:7.1:1.1", "0:7.1")


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_error_of_a_callback_is_raised_by_who_waits_for_its_future(kind) -> None:
    def fail(_done: torch.futures.Future[Any]) -> None:
        raise kind("gone")

    future = WorkFuture("0:7")
    failed = future.then(fail)
    caught = failed.then(lambda done: str(type(raised(done)).__name__))
    future.set_result(None)
    with pytest.raises(kind, match="gone"):
        failed.wait()
    assert caught.wait() == kind.__name__
    assert queue_of_callback() == ""


def raised(done: torch.futures.Future[Any]) -> BaseException:
    with pytest.raises((KeyError, KeyboardInterrupt)) as told:
        done.value()
    return told.value
