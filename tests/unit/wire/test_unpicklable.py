"""What cannot be sent is found inside of what holds it, and nothing is done about the rest."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch

from lockstitch.trust.registry import Registry
from lockstitch.wire.encodings import PicklingRegistry
from lockstitch.wire.unpicklable import describe_unpicklable
from tests.labels import steady

LOCK = threading.Lock()


class Holder:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def __repr__(self) -> str:
        return "a holder"

    def method(self) -> None: ...


class LeavesOut(Holder):
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}


class Own:
    """Registered."""


def closure_over(thing: Any) -> Any:
    return lambda: thing


def naming_a_global() -> Any:
    namespace: dict[str, Any] = {"lock": LOCK}
    exec("def f(): return lock", namespace)
    return namespace["f"]


def loop() -> Any:
    holder = Holder()
    holder.itself = [holder, (item for item in ())]
    return holder


def found(value: Any, registry: PicklingRegistry | None = None) -> str:
    return describe_unpicklable([("harmless", 1), ("it", value)], registry or PicklingRegistry())


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, "it"),
        ([1, {"a": (2, LOCK)}], "it[1]['a'][1]"),
        (Holder(good=1, model=Holder(lock=LOCK)), "it.model.lock"),
        (LeavesOut(lock=LOCK, other=[LOCK]), "it"),
        (Holder(lock=LOCK).method, "it.__self__.lock"),
        (functools.partial(print, 1, LOCK), "it.args[1]"),
        (functools.partial(print, end=LOCK), "it.keywords['end']"),
        (functools.partial(closure_over(LOCK)), "it.func's variable thing"),
        (naming_a_global(), "it's global lock"),
    ],
    ids=steady,
)
def test_the_innermost_part_is_named(value: Any, path: str) -> None:
    assert found(value).startswith(f"{path} is ")


def test_it_is_named_within_a_module_of_torch() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(1, 1))
    module[0].lock = LOCK
    assert found(module).startswith("it._modules['0'].lock is ")


def test_what_holds_itself_is_no_trap() -> None:
    assert found(loop()).startswith("it.itself[1] is <generator")


def test_nothing_is_named_where_all_can_be_sent() -> None:
    assert found([1, closure_over(2), LeavesOut(lock=LOCK)]) == ""


def test_registered_types_can_be_sent_and_nothing_happens_to_them() -> None:
    registry = PicklingRegistry()
    registry.register(Own, lambda _own, _session: pytest.fail("it was sent"), lambda: Own())
    assert found([Own(), LOCK], registry).startswith("it[1] is ")


def test_in_a_job_with_a_registry_code_is_a_culprit() -> None:
    registry = PicklingRegistry()
    registry.allowed = Registry()
    assert found([1, closure_over(2)], registry).startswith("it[1] is <function closure_over")
