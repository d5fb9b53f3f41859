"""What the workers of these tests run, and how the tests wait."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.rref.rref import RRef
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.worker import current_worker
from lockstitch.testing.time_limits import ActiveTimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerId
    from lockstitch.testing.cluster import LocalCluster


def references(worker: Any) -> ReferenceService:
    return worker.service(ReferenceService)


def remote(to: Any, function: Callable[..., Any], *args: Any, timeout: float = -1.0) -> RRef[Any]:
    return references(current_worker()).create_remote(to.id, function, args, None, timeout)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    time_limit = ActiveTimeLimit(seconds)
    pause = threading.Event()
    while not condition():
        if time_limit.is_over():
            return False
        gc.collect()
        pause.wait(0.01)
    return True


def nothing_is_held(cluster: LocalCluster) -> bool:
    return all(
        references(worker).statistics() == type(references(worker).statistics())(0, 0, 0, 0, 0, 0)
        for worker in cluster
    )


# ---------------------------------------------------------------- functions to be called


def add(a: Any, b: Any) -> Any:
    return a + b


def value_of(rref: RRef[Any]) -> Any:
    return rref.to_here()


def local_value_of(rref: RRef[Any]) -> Any:
    return rref.local_value()


def is_confirmed(rref: RRef[Any]) -> bool:
    return rref.confirmed_by_owner()


def is_owner(rref: RRef[Any]) -> bool:
    return rref.is_owner()


def give_back(rref: RRef[Any]) -> RRef[Any]:
    return rref


def pass_on(rref: RRef[Any], to: WorkerId) -> Any:
    """Sends the reference on, and lets go of it at once."""
    return current_worker().agent.outgoing.call_async(to, value_of, (rref,)).wait()


def make_here(value: Any) -> RRef[Any]:
    return RRef(value)


def fail() -> None:
    raise KeyError("on purpose")


def fail_badly() -> None:
    raise SystemExit(3)


KEPT: list[Any] = []


def keep(rref: RRef[Any]) -> None:
    KEPT.append(rref)


def forget() -> None:
    KEPT.clear()


class Gate:
    """Functions that wait until the test lets them go on."""

    event = threading.Event()

    @classmethod
    def close(cls) -> None:
        cls.event = threading.Event()

    @classmethod
    def open(cls) -> None:
        cls.event.set()


def wait_at_gate(value: Any) -> Any:
    with current_worker().agent.blocked():
        assert Gate.event.wait(60)
    return value


class Counter:
    kind = "counter"

    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, n: int) -> int:
        self.value += n
        return self.value

    def get(self) -> int:
        return self.value

    def fail(self) -> None:
        raise LookupError("no luck")

    def slowly(self) -> int:
        return wait_at_gate(self.value)

    @staticmethod
    def double(n: int) -> int:
        return 2 * n

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    def later(self, n: int) -> torch.futures.Future[int]:
        future: torch.futures.Future[int] = torch.futures.Future()
        future.set_result(self.value + n)
        return future

    def never_later(self) -> int:
        return 3

    later._wrapped_async_rpc_function = later  # type: ignore[attr-defined]
    never_later._wrapped_async_rpc_function = never_later  # type: ignore[attr-defined]
