"""The thread that completes futures: in order, begun when it is needed, and ended."""

from __future__ import annotations

import threading

import torch

from lockstitch.c10d.completions import Completions


class Work:
    """Done when it is told so."""

    def __init__(self, value: int) -> None:
        self.may_end = threading.Event()
        self.value = value
        self.thread = ""

    def complete(self, future: torch.futures.Future[int]) -> None:
        self.may_end.wait()
        self.thread = threading.current_thread().name
        future.set_result(self.value)


def test_futures_are_completed_by_one_thread_in_order() -> None:
    completions = Completions("completing")
    works, futures = [Work(1), Work(2)], [torch.futures.Future(), torch.futures.Future()]
    for work, future in zip(works, futures, strict=True):
        completions.add(work, future)
    works[1].may_end.set()
    assert not futures[1].done()
    works[0].may_end.set()
    assert [future.wait() for future in futures] == [1, 2]
    assert {work.thread for work in works} == {"completing"}
    completions.close()


def test_after_the_end_a_future_is_completed_at_once() -> None:
    completions = Completions("completing")
    completions.close()
    completions.close()
    work: Work = Work(3)
    work.may_end.set()
    future: torch.futures.Future[int] = torch.futures.Future()
    completions.add(work, future)
    assert future.value() == 3
    assert work.thread == threading.current_thread().name
