"""What the workers of these tests run."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.runtime.inherited import INHERITED
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.runtime.worker import Worker
    from lockstitch.testing.cluster import LocalCluster

PATIENCE_SECONDS = 60.0


def call(
    caller: Worker, to: str | int, function: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    """A blocking call as code of `caller`; `options` are `kwargs` and `timeout`."""
    return caller.agent.outgoing.call(caller.agent.resolve(to).worker, function, args, **options)


def call_async(
    caller: Worker, to: str | int, function: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    return caller.agent.outgoing.call_async(
        caller.agent.resolve(to).worker, function, args, **options
    )


def here() -> tuple[str, str]:
    """Name of the worker that runs this, and of its thread."""
    return current_worker().name, threading.current_thread().name


def add(x: Any, y: Any = 10, *, scale: Any = 1) -> Any:
    return (x + y) * scale


def apply(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def descend(depth: int) -> list[str]:
    """Calls itself on the next worker, `depth` times; the names that it came through."""
    me = current_worker()
    if not depth:
        return [me.name]
    members = me.agent.members()
    following = members[(me.info.id + 1) % len(members)]
    return [me.name, *me.agent.outgoing.call(following.worker, descend, (depth - 1,))]


def call_self(depth: int) -> int:
    me = current_worker()
    return 0 if not depth else 1 + me.agent.outgoing.call(me.id, call_self, (depth - 1,))


def fail(error: BaseException) -> None:
    raise error


def fail_further_on(to: str, error: BaseException) -> None:
    call(current_worker(), to, fail, error)


def leave_the_process() -> None:
    sys.exit(3)


def unsendable() -> Any:
    return threading.Lock()


class FailsToReduce:
    def __reduce__(self) -> Any:
        raise self.error

    def __init__(self, error: BaseException) -> None:
        self.error = error


def unsendable_because_of(error: BaseException) -> Any:
    return FailsToReduce(error)


def of_size(count: int) -> bytes:
    return bytes(count)


def length(data: Any) -> int:
    return len(data)


def seconds_left() -> float | None:
    deadline = INHERITED.deadline
    return None if deadline is None else deadline - current_worker().clock.now()


def seconds_left_at(to: str, timeout: float) -> float | None:
    left: float | None = call(current_worker(), to, seconds_left, timeout=timeout)
    return left


class Gate:
    """Where functions of workers wait for the test; there is one process, so it can open it."""

    opened = threading.Event()
    entered = threading.Semaphore(0)
    count = 0
    futures: list[torch.futures.Future[Any]] = []  # noqa: RUF012 - reset by each test

    @classmethod
    def reset(cls) -> None:
        cls.opened = threading.Event()
        cls.entered = threading.Semaphore(0)
        cls.count = 0
        cls.futures = []

    @classmethod
    def await_entries(cls, count: int = 1) -> None:
        for _ in range(count):
            assert cls.entered.acquire(timeout=PATIENCE_SECONDS), "nobody came to the gate"


def wait_at_gate(value: Any = None) -> Any:
    Gate.count += 1
    opened = Gate.opened
    Gate.entered.release()
    assert opened.wait(PATIENCE_SECONDS), "the gate was never opened"
    return value


def defer() -> torch.futures.Future[Any]:
    """For `async_execution`: the test completes the future."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    Gate.futures.append(future)
    Gate.entered.release()
    return future


defer._wrapped_async_rpc_function = defer  # type: ignore[attr-defined]


def defer_nothing() -> int:
    return 3


defer_nothing._wrapped_async_rpc_function = defer_nothing  # type: ignore[attr-defined]


def defer_to(to: str) -> torch.futures.Future[Any]:
    return call_async(current_worker(), to, add, 1, 2)  # type: ignore[no-any-return]


defer_to._wrapped_async_rpc_function = defer_to  # type: ignore[attr-defined]


def names(cluster: LocalCluster) -> list[str]:
    return [worker.name for worker in cluster]
