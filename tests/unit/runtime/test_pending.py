"""A future of ours is one of torch's, can be awaited, and its wait ends at Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.runtime.pending import Future, Pending
from tests.unit.runtime.stage import Background, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def completed(value: object) -> Future[object]:
    future: Future[object] = Future()
    future.complete(value, None)
    return future


def failed(error: Exception) -> Future[object]:
    future: Future[object] = Future()
    future.complete(None, error)
    return future


def test_it_is_a_future_of_torch() -> None:
    future = completed(3)
    assert isinstance(future, torch.futures.Future)
    assert isinstance(future, torch._C.Future)
    assert (future.done(), future.value(), future.wait()) == (True, 3, 3)


def test_waiting_raises_the_exception_itself_as_often_as_one_waits() -> None:
    future = failed(KeyError("k"))
    for _ in range(2):
        with pytest.raises(KeyError, match="k"):
            future.wait()
    with pytest.raises(KeyError):
        torch.futures.wait_all([completed(1), future])


def test_first_result_counts() -> None:
    future = completed(1)
    future.complete(2, None)
    future.complete(None, ValueError("late"))
    assert future.wait() == 1


def test_wait_all_and_collect_all_of_torch() -> None:
    futures = [completed(n) for n in range(3)]
    assert torch.futures.wait_all(futures) == [0, 1, 2]
    assert [each.wait() for each in torch.futures.collect_all(futures).wait()] == [0, 1, 2]


def test_then_and_callbacks() -> None:
    future: Future[int] = Future()
    chained = future.then(lambda done: done.wait() + 1)
    seen: list[int] = []
    future.add_done_callback(lambda done: seen.append(done.value()))
    future.complete(1, None)
    assert chained.wait() == 2
    assert seen == [1]


def test_waiters_wake_when_it_is_completed_elsewhere() -> None:
    future: Future[str] = Future()
    waiters = [Background(future.wait) for _ in range(3)]
    future.complete("done", None)
    assert [waiter.result() for waiter in waiters] == ["done"] * 3


def test_an_inner_callback_does_not_make_the_answer_urgent() -> None:
    future: Future[int] = Future()
    channel, seen = Reader(), []
    future.attach(channel, Pending(None, None, future))  # type: ignore[arg-type]
    future.add_inner_callback(lambda done: seen.append(done.value()))
    assert channel.attended == 0
    assert not future.has_callbacks
    future.complete(4, None)
    assert seen == [4]


class Reader:
    """A channel that notes what its futures ask of it."""

    def __init__(self, read: Callable[[], None] = lambda: None) -> None:
        self.read = read
        self.attended = 0

    def wait(self, _pending: Pending) -> None:
        self.read()

    def attend(self) -> None:
        self.attended += 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda future: future.then(lambda done: done),
        lambda future: future.add_done_callback(lambda done: None),
        lambda future: future.done(),
    ],
)
def test_answers_are_read_at_once_for_whoever_will_not_wait(ask: Callable[..., Any]) -> None:
    future: Future[int] = Future()
    channel = Reader()
    future.attach(channel, Pending(None, None, future))  # type: ignore[arg-type]
    assert channel.attended == 0
    ask(future)
    assert channel.attended == 1
    future.complete(1, None)
    ask(future)
    assert channel.attended == 1


def test_wait_lets_the_thread_read_the_answer_itself() -> None:
    future: Future[str] = Future()
    channel = Reader(lambda: future.complete("read by the waiter", None))
    future.attach(channel, Pending(None, None, future))  # type: ignore[arg-type]
    assert future.wait() == "read by the waiter"


def test_await_returns_the_result_and_raises_the_exception() -> None:
    async def main() -> None:
        open_one: Future[int] = Future()
        threading.Timer(0.01, open_one.complete, (5, None)).start()
        assert await open_one == 5
        assert await completed(7) == 7
        with pytest.raises(KeyError, match="k"):
            await failed(KeyError("k"))
        assert await asyncio.gather(*(completed(n) for n in range(3))) == [0, 1, 2]

    asyncio.run(main())


def test_await_can_be_cancelled_and_the_future_go_on() -> None:
    future: Future[int] = Future()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)

    asyncio.run(main())
    future.complete(1, None)
    assert future.wait() == 1


def test_wait_ends_at_ctrl_c() -> None:
    future: Future[int] = Future()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        future.wait()
    timer.join()


# ---------------------------------------------------------------- Pending


def test_every_sleeper_is_woken() -> None:
    pending = Pending(None, None, None)
    ready = [threading.Event() for _ in range(3)]

    def sleep(event: threading.Event) -> bool:
        with pending.sleeping() as lock:
            event.set()
            return pending.done or lock.acquire(timeout=10)

    sleepers = [Background(sleep, event) for event in ready]
    assert all(event.wait(10) for event in ready)
    pending.finish(None, ValueError("over"))
    assert [sleeper.result() for sleeper in sleepers] == [True] * 3
    assert pending.locks == []


def test_finishing_and_waking_again_is_harmless() -> None:
    pending = Pending(None, None, None)
    with pending.sleeping() as lock:
        pending.finish(None, None)
        pending.finish(None, None)
        pending.wake()
        assert lock.acquire(blocking=False)


def test_a_callback_that_comes_while_a_thread_that_reads_completes_it_runs_elsewhere() -> None:
    """What it waits for that thread could not read."""
    future: Future[int] = Future()
    ran: list[int] = []
    is_attaching = threading.Event()

    def attach() -> None:
        is_attaching.set()
        future.then(lambda done: ran.append(threading.get_ident()))

    future.settled_by = threading.get_ident()
    thread = threading.Thread(target=attach)
    thread.start()
    is_attaching.wait()
    wait_until(lambda: future.has_callbacks)
    future.complete(1, None)
    thread.join()
    assert ran == [thread.ident]
