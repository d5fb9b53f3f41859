"""The threads that complete futures: in order, begun when they are needed, and ended."""

from __future__ import annotations

import threading
from typing import Any

import torch

from lockstitch.c10d.completions import Completions


class Work:
    """Done when it is told so."""

    def __init__(self, value: int) -> None:
        self.may_end = threading.Event()
        self.value = value
        self.thread = ""

    def outcome(self) -> BaseException | None:
        self.may_end.wait()
        self.thread = threading.current_thread().name
        return None

    def complete(self, future: torch.futures.Future[int], error: BaseException | None) -> None:
        assert error is None
        future.set_result(self.value)


def test_futures_are_completed_by_a_thread_in_order() -> None:
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


def test_what_is_attached_to_a_future_may_wait_for_futures_queued_before_and_after() -> None:
    completions = Completions("completing")
    works = [Work(number) for number in range(4)]
    futures: list[torch.futures.Future[int]] = [torch.futures.Future() for _ in works]

    def waiting(own: int, others: tuple[int, ...]) -> Any:
        def wait(done: torch.futures.Future[int]) -> int:
            for other in others:
                if other == 3:  # not queued before
                    completions.add(works[other], futures[other])
            return own + sum(futures[other].wait() for other in others) + done.value()

        return wait

    chained = [futures[0].then(waiting(10, (1, 2))), futures[1].then(waiting(20, (2, 3)))]
    for work, future in zip(works[:3], futures, strict=False):
        completions.add(work, future)
    for work in works:
        work.may_end.set()
    assert [future.wait() for future in chained] == [13, 26]
    completions.close()
    completions.close()
    assert "completing" not in {thread.name for thread in threading.enumerate()}


def test_what_a_callback_has_submitted_is_not_held_up_by_what_the_program_has() -> None:
    completions = Completions("completing")
    of_program, of_callback = Work(1), Work(2)
    futures: list[torch.futures.Future[int]] = [torch.futures.Future(), torch.futures.Future()]
    completions.add(of_program, futures[0])
    completions.add(of_callback, futures[1], "0:7.1")
    of_callback.may_end.set()
    assert futures[1].wait() == 2
    assert not futures[0].done()
    of_program.may_end.set()
    assert futures[0].wait() == 1
    completions.close()


def test_threads_are_kept_and_used_again() -> None:
    completions = Completions("completing")
    for number in range(20):
        work: Work = Work(number)
        work.may_end.set()
        future: torch.futures.Future[int] = torch.futures.Future()
        completions.add(work, future)
        assert future.wait() == number
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("completing") < 10  # one may not have come to rest when it is called
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
