"""The results of all: waited for, awaited, cancelled; and what the error of some says."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lockstitch import rpc
from lockstitch.errors import CallCancelledError, GroupError, PeerDiedError
from lockstitch.rpc.worker_groups.future import failure_of

BEGUN, ENDED = threading.Semaphore(0), threading.Semaphore(0)


def name() -> str:
    return rpc.get_worker_info().name


async def wait_for_ever() -> None:
    try:
        BEGUN.release()
        await asyncio.Event().wait()
    finally:
        ENDED.release()


async def fail_on(failing: str) -> str:
    if name() == failing:
        raise KeyError(failing)
    return name()


def test_it_can_be_awaited_and_iterated_by_a_coroutine(cluster) -> None:
    async def collect() -> tuple[list[str], set[str]]:
        names = await rpc.group().call_async(name)
        return names, {worker.name async for worker, _ in rpc.group().call_async(name)}

    names, came = asyncio.run(collect())
    assert (names, came) == (rpc.group().names, set(names))


def test_awaiting_raises_what_waiting_does(cluster, capsys) -> None:
    async def collect() -> None:
        await rpc.group().call_async(fail_on, ("worker3",))

    with pytest.raises(GroupError, match="worker3: KeyError") as raised:
        asyncio.run(collect())
    assert len(raised.value.results) == 3


def test_cancel_ends_all_that_are_not_done(cluster) -> None:
    future = rpc.group().call_async(wait_for_ever)
    assert not future.done()
    assert repr(future) == "<GroupFuture · 0 of 4 done>"
    for _ in range(4):
        assert BEGUN.acquire(timeout=30)
    assert future.cancel()
    with pytest.raises(GroupError) as raised:
        future.wait()
    assert {type(each) for each in raised.value.errors.values()} == {CallCancelledError}
    for _ in range(4):
        assert ENDED.acquire(timeout=30)
    assert not future.cancel()


def test_cancelling_what_awaits_it_cancels_all(cluster) -> None:
    async def give_up() -> None:
        await asyncio.wait_for(rpc.group().call_async(wait_for_ever), 0.2)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(give_up())
    for _ in range(4):
        assert ENDED.acquire(timeout=30)


def test_error_of_many_is_short(cluster) -> None:
    errors = {f"w{n}": ValueError(f"text {n}\nmore") for n in range(20)}
    error = failure_of(errors, {}, "of 20 workers")
    assert "20 of 20 workers failed (w0: ValueError: text 0; w1" in str(error)
    assert "and 12 more); there are no results" in str(error)
    assert "w3: worker 'w3' died" in str(
        failure_of({"w3": PeerDiedError("w3")}, {}, "of 1 workers")
    )


def test_an_error_without_a_text_is_one_of_the_group() -> None:
    class SaysNothingError(Exception):
        def __str__(self) -> str:
            raise AttributeError("what")

    error = failure_of({"a": SaysNothingError()}, {}, "of 1 workers")
    assert "1 of 1 workers failed (a: SaysNothingError: (its text cannot be shown))" in str(error)
