"""Errors of a program that fail at whatever they are asked: each reaches whoever waits."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import own_attribute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from lockstitch.testing.cluster import LocalCluster


class UnpicklableError(Exception):
    def __reduce_ex__(self, _protocol: object) -> Any:
        raise SystemExit


class UnshowableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


def fail_at_reading() -> None:
    raise GeneratorExit


class UnreadableError(Exception):
    def __reduce__(self) -> Any:
        return fail_at_reading, ()


class SealedError(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise ValueError(name)


class FalsyError(Exception):
    def __bool__(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    what: str


class HiddenError(Exception):
    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise ValueError


class UnnotableError(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise SystemExit


class UncausedError(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise ValueError


class UntraceableError(Exception):
    __traceback__ = "nowhere"  # type: ignore[assignment]


class DeafError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)


class ClasslessError(Exception):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise ValueError


HOSTILE = [
    UnpicklableError,
    UnshowableError,
    UnreadableError,
    SealedError,
    FalsyError,
    FrozenError,
    HiddenError,
    UnnotableError,
    UncausedError,
    UntraceableError,
    DeafError,
    ClasslessError,
]


def fail(kind: type[Exception]) -> None:
    raise kind("what was raised")


async def fail_later(kind: type[Exception]) -> None:
    raise kind("what was raised")


@rpc.functions.async_execution
def fail_by_future(kind: type[Exception]) -> torch.futures.Future[None]:
    future = torch.futures.Future[None]()
    future.set_exception(kind("what was raised"))
    return future


def fail_after_one(kind: type[Exception]) -> Iterator[int]:
    yield 1
    raise kind("what was raised")


async def fail_after_one_later(kind: type[Exception]) -> AsyncIterator[int]:
    yield 1
    raise kind("what was raised")


class FailsBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, kind: type[Exception]) -> torch.Tensor:  # type: ignore[override]
        ctx.kind = kind
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:  # type: ignore[override]
        raise ctx.kind("what was raised")


def fail_backwards(tensor: torch.Tensor, kind: type[Exception]) -> torch.Tensor:
    return FailsBackwards.apply(tensor, kind)  # type: ignore[no-any-return]


def backward(kind: type[Exception]) -> None:
    with autograd.context() as context_id:
        leaf = torch.ones(2, requires_grad=True)
        result = rpc.rpc_sync("worker1", fail_backwards, args=(leaf, kind))
        autograd.backward(context_id, [result.sum()])


def backward_here(kind: type[Exception]) -> None:
    with autograd.context() as context_id:
        leaf = torch.ones(2, requires_grad=True)
        autograd.backward(context_id, [fail_backwards(leaf, kind).sum()])


WAYS: dict[str, Callable[[type[Exception]], object]] = {
    "sync": lambda kind: rpc.rpc_sync("worker1", fail, args=(kind,)),
    "to itself": lambda kind: rpc.rpc_sync("worker0", fail, args=(kind,)),
    "future": lambda kind: call_async_wait(fail, kind),
    "then": lambda kind: call_async_then(fail, kind),
    "reference": lambda kind: rpc.remote("worker1", fail, args=(kind,)).to_here(),
    "coroutine": lambda kind: rpc.rpc_sync("worker1", fail_later, args=(kind,)),
    "asynchronous": lambda kind: rpc.rpc_sync("worker1", fail_by_future, args=(kind,)),
    "group": lambda kind: rpc.group(["worker1"]).call(fail, (kind,)),
    "stream": lambda kind: list(rpc.group(["worker1"]).stream(fail_after_one, (kind,))),
    "later stream": lambda kind: list(rpc.group(["worker1"]).stream(fail_after_one_later, (kind,))),
    "backward": backward,
    "backward here": backward_here,
}


def call_async_wait(function: Callable[..., Any], kind: type[Exception]) -> object:
    return rpc.rpc_async("worker1", function, args=(kind,)).wait()


def call_async_then(function: Callable[..., Any], kind: type[Exception]) -> object:
    future = rpc.rpc_async("worker1", function, args=(kind,))
    return future.then(lambda done: done.wait()).wait()


# Python 3.13 tells of what torch itself ignores when it looks for attributes.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", HOSTILE)
def test_it_reaches_whoever_waits(cluster: LocalCluster, kind: type[Exception]) -> None:
    raised: dict[str, BaseException] = {}

    def run() -> None:  # not the main thread, where an interrupt may come
        with cluster[0].active():
            for way, begin in WAYS.items():
                try:
                    begin(kind)
                except BaseException as error:  # noqa: BLE001 - looked at below
                    raised[way] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert list(raised) == list(WAYS)
    for way, error in raised.items():
        assert isinstance(error, Exception), way
        if kind is not UnshowableError:
            args, cause = (own_attribute(error, name) for name in ("args", "__cause__"))
            words = f"{type(error).__name__} {args} {cause!r}"
            assert kind.__name__ in words or "what was raised" in words, (way, words)
