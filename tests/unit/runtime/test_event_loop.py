"""Coroutines on a worker's loop: side by side, each in its own modes and context, and cancelled."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.errors import RpcError
from lockstitch.runtime.event_loop import EventLoop, Running
from lockstitch.runtime.inherited import INHERITED, refuse_to_block

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = ContextVar("name", default="none")


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop("here", lambda: None)
    yield loop
    assert loop.close(10) == []


def result_of(running: Running) -> Any:
    done = threading.Event()
    running.add_done_callback(lambda _: done.set())
    assert done.wait(30)
    return running.value()


def test_no_thread_before_the_first_coroutine(loop) -> None:
    assert loop.living() == []


def test_it_is_told_where_a_coroutine_waits(loop) -> None:
    began, ends = threading.Event(), asyncio.Event()

    async def inner() -> None:
        began.set()
        await ends.wait()

    async def outer() -> None:
        await inner()

    running = loop.run(outer(), None)
    assert began.wait(30)
    while len(running.frames()) < 3:  # the last step is just being taken
        pass
    assert [each.f_code.co_name for each in running.frames()] == ["outer", "inner", "wait"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        result_of(running)
    assert running.frames() == []


def test_coroutines_run_side_by_side_on_one_thread(loop) -> None:
    async def wait_for(first: asyncio.Event, second: asyncio.Event) -> int:
        first.set()
        await second.wait()
        return threading.get_ident()

    async def both() -> list[int]:
        one, other = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(wait_for(one, other), wait_for(other, one))

    idents = set(result_of(loop.run(both())))
    assert idents == {thread.ident for thread in loop.living()}


def test_error_is_raised_with_the_frames_of_the_coroutine(loop) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as raised:
        result_of(loop.run(fails()))
    assert raised.traceback[-1].name == "fails"


def test_each_sees_the_context_of_its_caller_and_its_deadline(loop) -> None:
    async def look() -> tuple[str, float | None]:
        await asyncio.sleep(0)
        return NAME.get(), INHERITED.deadline

    async def change() -> None:
        NAME.set("changed")
        await asyncio.sleep(0)

    token = NAME.set("caller")
    changing, looking = loop.run(change(), 7.0), loop.run(look(), 5.0)
    NAME.reset(token)
    result_of(changing)
    assert result_of(looking) == ("caller", 5.0)
    assert result_of(loop.run(look())) == ("none", None)


def test_modes_of_one_do_not_reach_another(loop) -> None:
    """Else the other would compute without a graph, and its gradients would be missing."""

    async def hold(inside: asyncio.Event, go_on: asyncio.Event) -> bool:
        with torch.no_grad():
            inside.set()
            await go_on.wait()
            return torch.is_grad_enabled()

    async def look(inside: asyncio.Event, go_on: asyncio.Event) -> bool:
        await inside.wait()
        go_on.set()
        return torch.is_grad_enabled()

    events: list[asyncio.Event] = []

    async def make() -> None:
        events.extend([asyncio.Event(), asyncio.Event()])

    result_of(loop.run(make()))
    holding, looking = loop.run(hold(*events)), loop.run(look(*events))
    assert result_of(looking) is True
    assert result_of(holding) is False


def test_cancelled_one_can_clean_up(loop) -> None:
    log: list[str] = []
    begun = threading.Event()

    async def wait_for_ever() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            log.append("cleaned up")

    running = loop.run(wait_for_ever())
    assert begun.wait(30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        result_of(running)
    assert log == ["cleaned up"]


@pytest.mark.parametrize("ends", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_one_that_would_end_the_program_fails_alone(loop, ends) -> None:
    """asyncio leaves its loop for these; who waited for another coroutine would wait for ever."""

    async def leave() -> None:
        await asyncio.sleep(0)
        raise ends

    async def leave_in_a_task() -> None:
        await asyncio.create_task(leave())

    async def wait_for(event: asyncio.Event) -> bool:
        return await event.wait()

    async def make() -> asyncio.Event:
        return asyncio.Event()

    event = result_of(loop.run(make()))
    waiting = loop.run(wait_for(event))
    for each in (leave, leave_in_a_task):
        with pytest.raises(type(ends)):
            result_of(loop.run(each()))

    async def let_go() -> None:
        event.set()

    result_of(loop.run(let_go()))
    assert result_of(waiting) is True


def test_close_cancels_all_and_refuses_more() -> None:
    loop = EventLoop("here", lambda: None)
    running = loop.run(asyncio.sleep(1000))
    assert loop.close(10) == []
    assert loop.close(10) == []
    with pytest.raises(asyncio.CancelledError):
        result_of(running)
    running.cancel()  # harmless
    late = asyncio.sleep(0)
    with pytest.raises(RpcError, match="has shut down"):
        loop.run(late)
    late.close()


@pytest.mark.parametrize("last", [SystemExit(3), ValueError("mine")], ids=["exit", "error"])
def test_close_ends_those_that_fail_while_they_are_cancelled(last) -> None:
    async def fail_late() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            raise last

    loop = EventLoop("here", lambda: None)
    running = [loop.run(fail_late()) for _ in range(3)]
    assert result_of(loop.run(asyncio.sleep(0))) is None
    assert loop.close(10) == []
    for each in running:
        with pytest.raises(type(last)):
            result_of(each)


def test_waits_are_refused_on_the_loop(loop) -> None:
    async def block() -> None:
        refuse_to_block("waiting")

    refuse_to_block("waiting")  # elsewhere it is allowed
    with pytest.raises(RuntimeError, match="event loop of worker 'here'.*await the future"):
        result_of(loop.run(block()))
