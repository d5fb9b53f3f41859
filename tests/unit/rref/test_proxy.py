from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lockstitch.errors import SerializationError
from lockstitch.rref.proxy import run_method
from lockstitch.runtime.invocation import Deferred
from lockstitch.trust.registry import Registry


class Held:
    """Like a reference at its owner."""

    def __init__(self, value: object, allowed: Registry | None = None) -> None:
        self._value = value
        self._home = SimpleNamespace(worker=SimpleNamespace(agent=SimpleNamespace(allowed=allowed)))

    def local_value(self) -> object:
        return self._value


class Thing:
    def __init__(self) -> None:
        self.mine = lambda: 1

    def plus(self, n: int, *, times: int = 1) -> int:
        return n + times

    def later(self) -> torch.futures.Future[int]:
        return torch.futures.Future()

    def wrong(self) -> int:
        return 3

    later._wrapped_async_rpc_function = later  # type: ignore[attr-defined]
    wrong._wrapped_async_rpc_function = wrong  # type: ignore[attr-defined]


def test_a_method_runs_on_the_value_with_all_arguments():
    assert run_method(Held(Thing()), "plus", 1, times=2) == 3


def test_the_attribute_is_looked_up_on_the_type():
    with pytest.raises(AttributeError, match="type object 'Thing' has no attribute 'mine'"):
        run_method(Held(Thing()), "mine")


def test_an_async_execution_method_defers_the_answer():
    deferred = run_method(Held(Thing()), "later")
    assert isinstance(deferred, Deferred)
    assert isinstance(deferred.future, torch.futures.Future)


def test_an_async_execution_method_must_return_a_future():
    with pytest.raises(RuntimeError, match="must return a torch.futures.Future object, but wrong"):
        run_method(Held(Thing()), "wrong")


def test_a_registry_has_to_know_the_class() -> None:
    assert run_method(Held(Thing(), Registry([Thing])), "plus", 1) == 2
    with pytest.raises(SerializationError, match="'plus' of a Thing may not be called"):
        run_method(Held(Thing(), Registry()), "plus", 1)
