"""One request: run or parked, within its scope, and answered exactly once."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.errors import SerializationError
from lockstitch.runtime.inherited import INHERITED
from lockstitch.testing.clock import ManualClock
from lockstitch.wire.messages import Stitch
from tests.unit.runtime.stage import Stage, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.wire.encodings import UnpickleSession

HERE = __name__


def value_of(reference: Reference) -> str:
    return f"value of {reference.name}"


class Reference:
    """Stands for what must be confirmed before a function may see it."""

    all: dict[str, Reference] = {}  # noqa: RUF012 - emptied by each test

    def __init__(self, name: str) -> None:
        self.name = name
        self._callbacks: list[Callable[[], None]] = []
        self._confirmed = False

    def is_confirmed(self) -> bool:
        return self._confirmed

    def when_confirmed(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def confirm(self) -> None:
        self._confirmed = True
        for callback in self._callbacks:
            callback()


@pytest.fixture
def stage() -> Iterator[Stage]:
    Reference.all.clear()
    clock = ManualClock()
    with Stage(clock=clock) as stage:

        def receive(session: UnpickleSession, name: str) -> Reference:
            reference = Reference.all[name] = Reference(name)
            session.received.append(reference)
            return reference

        stage.worker.pickling.register(Reference, lambda ref, _session: (ref.name,), receive)
        yield stage


def send(stage: Stage, qualified: str, *args: Any):  # type: ignore[no-untyped-def]
    caller = stage.caller()
    caller.send(caller.call(qualified, *args))
    return caller


def test_call_with_unconfirmed_references_holds_no_thread_until_all_are_confirmed(
    stage: Stage,
) -> None:
    caller = send(stage, f"{HERE}:value_of", Reference("a"))
    wait_until(lambda: "a" in Reference.all)
    wait_until(lambda: stage.agent.thread_pool.is_resting)
    assert len(stage.agent.running_requests) == 1
    assert stage.agent.thread_pool.running == 0
    Reference.all["a"].confirm()
    assert caller.answer() == "value of a"
    wait_until(lambda: not stage.agent.running_requests)
    assert stage.agent.running_requests.finished == 1


def test_all_references_must_be_confirmed(stage: Stage) -> None:
    caller = send(stage, "builtins:len", [Reference("a"), Reference("b")])
    wait_until(lambda: len(Reference.all) == 2)
    Reference.all["a"].confirm()
    assert len(stage.agent.running_requests) == 1
    Reference.all["b"].confirm()
    assert caller.answer() == 2


def test_unknown_function_fails_the_call(stage: Stage) -> None:
    error = send(stage, "no.such:function").answer()
    assert isinstance(error, SerializationError)
    wait_until(lambda: not stage.agent.running_requests)


def test_expired_request_is_not_run(stage: Stage) -> None:
    caller = stage.caller()
    caller.send(caller.call("builtins:abs", -1, timeout=0.0), caller.call("builtins:abs", -2))
    assert caller.answer() == 2


class Contexts:
    """An interceptor that only keeps the context of the message."""

    def __init__(self) -> None:
        self.current: int | None = None
        self.incoming_items: list[Any] = []

    def is_active(self) -> bool:
        return self.current is not None

    def is_recording(self) -> bool:
        return False

    def outgoing(self, to: object, items: Any) -> Stitch | None:
        return Stitch(self.current or 0, None, (), ())

    def incoming(
        self, sender: object, stitch: Stitch, items: list[Any], *, records: bool = True
    ) -> None:
        self.incoming_items += items
        items[:] = [item + 100 for item in items]

    @contextlib.contextmanager
    def scope(self, stitch: Stitch) -> Iterator[None]:
        self.current = stitch.context
        try:
            yield
        finally:
            self.current = None


CONTEXTS = Contexts()


def context_and_deadline(tensor: torch.Tensor) -> tuple[int | None, float | None, float]:
    return CONTEXTS.current, INHERITED.deadline, tensor.item()


def test_function_runs_in_the_context_and_time_of_its_caller(stage: Stage) -> None:
    stage.agent.interceptor = CONTEXTS  # type: ignore[assignment]
    caller = stage.caller()
    call = caller.call(f"{HERE}:context_and_deadline", torch.ones(1), timeout=7.0)
    stitched = type(call)(
        call.request, -1, call.definition, call.timeout, Stitch(42, None, (), ()), call.body
    )
    caller.send(stitched)
    reply = caller.receive()
    assert reply is not None
    assert stage.agent.values.unpack(reply.body) == (42, 7.0, 101.0)  # type: ignore[attr-defined]
    assert reply.stitch == Stitch(42, None, (), ())  # type: ignore[attr-defined]
    assert INHERITED.deadline is None


def test_texts_name_function_and_caller(stage: Stage) -> None:
    send(stage, f"{HERE}:value_of", Reference("a"))
    wait_until(lambda: Reference.all)
    (invocation,) = stage.agent.running_requests.list()
    assert repr(invocation) == f"<Invocation of {HERE}:value_of for 'peer1'>"
    Reference.all["a"].confirm()


def never() -> torch.futures.Future[int]:
    return torch.futures.Future()


never._wrapped_async_rpc_function = never  # type: ignore[attr-defined]


@pytest.mark.parametrize("qualified", [f"{HERE}:value_of", f"{HERE}:never"])
def test_what_is_parked_for_a_caller_is_dropped_with_it(stage: Stage, qualified: str) -> None:
    """Nobody will answer it, so nobody must wait for it: a shutdown would never end."""
    survivor = stage.caller(2)
    arguments = (Reference("a"),) if "value_of" in qualified else ()
    survivor.send(survivor.call(qualified, *arguments))
    caller = send(stage, qualified, *arguments)
    wait_until(lambda: len(stage.agent.running_requests) == 2)
    wait_until(lambda: all(each.is_parked for each in stage.agent.running_requests.list()))
    caller.close()
    wait_until(lambda: len(stage.agent.running_requests) == 1)
    assert [each.caller_name for each in stage.agent.running_requests.list()] == ["peer2"]
    assert stage.agent.running_requests.finished == 1


def pause(reference: Reference) -> torch.futures.Future[int]:
    Reference.all["entered"] = reference
    assert GATE.wait(10)
    return never()


pause._wrapped_async_rpc_function = pause  # type: ignore[attr-defined]
GATE = threading.Event()


def test_what_is_parked_after_the_loss_of_its_caller_is_dropped_too(stage: Stage) -> None:
    GATE.clear()
    caller = stage.caller()
    caller.send(caller.call(f"{HERE}:pause", 1))
    wait_until(lambda: "entered" in Reference.all)
    caller.close()
    wait_until(lambda: stage.agent.is_lost((1, 0)))  # type: ignore[arg-type]
    assert len(stage.agent.running_requests) == 1
    GATE.set()
    wait_until(lambda: not stage.agent.running_requests)


def test_answer_for_a_caller_that_is_gone_is_noted(stage: Stage) -> None:
    caller = send(stage, f"{HERE}:value_of", Reference("a"))
    wait_until(lambda: Reference.all)
    caller.close()
    wait_until(lambda: stage.agent.peers.is_lost((1, 0)))  # type: ignore[arg-type]
    Reference.all["a"].confirm()
    wait_until(lambda: any("undeliverable" in line for line in stage.agent.core.failures))
