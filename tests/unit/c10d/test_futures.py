"""Futures of works: their callbacks, and what these are called on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lockstitch.c10d.futures import WorkFuture, queue_of_callback

if TYPE_CHECKING:
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


def test_callback_within_a_callback_leaves_the_outer_one_its_name() -> None:
    def outer(_done: torch.futures.Future[Any]) -> tuple[str, str]:
        inner = WorkFuture(f"{queue_of_callback()}:1")
        inner.set_result(None)
        return inner.then(asked).wait(), queue_of_callback()

    future = WorkFuture("0:7")
    future.set_result(None)
    assert future.then(outer).wait() == ("0:7.1:1.1", "0:7.1")


def test_error_of_a_callback_is_raised_by_who_waits_for_its_future() -> None:
    def fail(_done: torch.futures.Future[Any]) -> None:
        raise KeyError("gone")

    future = WorkFuture("0:7")
    failed = future.then(fail)
    caught = failed.then(lambda done: str(type(raised(done)).__name__))
    future.set_result(None)
    with pytest.raises(KeyError, match="gone"):
        failed.wait()
    assert caught.wait() == "KeyError"
    assert queue_of_callback() == ""


def raised(done: torch.futures.Future[Any]) -> BaseException:
    with pytest.raises(KeyError) as told:
        done.value()
    return told.value
