"""Calls to oneself take the same route: values are copied, functions run on other threads."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstitch.errors import LocalProtocolError, RpcTimeoutError
from lockstitch.ids import WorkerId
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.frames import FrameLimits
from lockstitch.wire.messages import ChildNoted
from tests.unit.runtime.stage import Background, Stage, echo, wait_until

ME = WorkerId(0, 0)


def thread_name() -> str:
    return threading.current_thread().name


def test_function_runs_on_a_thread_of_the_pool() -> None:
    with Stage() as stage:
        assert stage.agent.outgoing.call(ME, thread_name).startswith("worker-")


@pytest.mark.parametrize("size", [3, 100_000])
def test_values_are_copies(size: int) -> None:
    with Stage() as stage:
        tensor = torch.zeros(size)
        (arrived,) = stage.agent.outgoing.call(ME, echo, (tensor,))
        arrived.add_(1)
        assert not tensor.any()


def test_many_threads_at_once_with_values_of_all_sizes() -> None:
    def talk(stage: Stage, number: int) -> None:
        for size in (1, 1000, 30_000):
            tensor = torch.full((size,), float(number))
            assert torch.equal(stage.agent.outgoing.call(ME, echo, (tensor,))[0], tensor)

    with Stage() as stage:
        for talker in [Background(talk, stage, number) for number in range(10)]:
            talker.result()


def test_control_message_is_handled_before_send_returns() -> None:
    with Stage() as stage:
        handled: list[tuple[WorkerId, ChildNoted]] = []
        stage.agent.handle(ChildNoted, lambda sender, message: handled.append((sender, message)))
        message = ChildNoted((0, 0, 5))  # type: ignore[arg-type]
        stage.agent.send(ME, message)
        assert handled == [(ME, message)]


def test_message_beyond_the_limits_leaves_the_loop_usable() -> None:
    limits = FrameLimits(inline_bytes=1 << 16, bulk_bytes=1 << 16)
    with Stage(options=AgentOptions(limits=limits)) as stage:
        with pytest.raises(LocalProtocolError):
            stage.agent.outgoing.call(ME, echo, (torch.zeros(100_000),))
        assert stage.agent.outgoing.call(ME, echo, (1,)) == (1,)


@pytest.mark.parametrize("parts", [1, 2])
def test_an_interrupt_in_the_midst_of_a_message_leaves_the_loop_usable(
    monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    feed = FrameDecoder.feed

    def be_struck(decoder: FrameDecoder, buffer: bytes) -> None:
        feed(decoder, memoryview(buffer)[: len(buffer) * parts // 2])
        raise KeyboardInterrupt

    with Stage() as stage:
        with monkeypatch.context() as patch:
            patch.setattr(FrameDecoder, "feed", be_struck)
            with pytest.raises(KeyboardInterrupt):
                stage.agent.outgoing.call(ME, echo, (1,))
        assert stage.agent.outgoing.call(ME, echo, (2,), None, 5) == (2,)


def test_several_threads_wait_for_one_future() -> None:
    with Stage() as stage:
        gate = threading.Event()
        stage.worker.pickling.register(Key, lambda key, session: (), lambda session: gate)
        future = stage.agent.outgoing.call_async(ME, wait_for, (Key(),), None, 0)
        waiters = [Background(future.wait) for _ in range(3)]
        gate.set()
        assert [waiter.result() for waiter in waiters] == [True] * 3


def test_call_to_oneself_times_out() -> None:
    clock = ManualClock()
    with Stage(clock=clock) as stage:
        gate = threading.Event()
        stage.worker.pickling.register(Key, lambda key, session: (), lambda session: gate)
        waiter = Background(lambda: stage.agent.outgoing.call(ME, wait_for, (Key(),), None, 5))
        wait_until(lambda: stage.agent.thread_pool.running == 1)
        clock.wait_until_waiting()
        clock.advance(5)
        with pytest.raises(RpcTimeoutError):
            waiter.result()
        gate.set()


class Key:
    """Arrives as the event of the test, which could not cross by itself."""


def wait_for(event: threading.Event) -> bool:
    return event.wait(10)
