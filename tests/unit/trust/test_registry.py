"""Only what is registered has a name for peers, and only its public methods."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from lockstitch.errors import PeerDiedError, SerializationError
from lockstitch.trust.registry import Registry
from tests.labels import steady


class Model:
    def forward(self) -> int:
        return 1

    def __call__(self) -> int:
        return 2


def double(x: int) -> int:
    return 2 * x


HERE = __name__


def test_registered_things_are_found_and_others_are_not() -> None:
    registry = Registry([Model, double, torch.add])
    assert registry.function(HERE, "Model") is Model
    assert registry.part(HERE, "double") is double
    assert registry.holds(torch.add)
    for module, name in ((HERE, "HERE"), ("os", "system"), (HERE, "Model.forward"), ("x", "")):
        with pytest.raises(SerializationError, match="is not registered on this worker"):
            registry.function(module, name)


def test_register_is_a_decorator_and_may_be_repeated() -> None:
    registry = Registry()
    assert registry.register(double) is double
    assert registry.register(double) is double
    assert registry.register(math.sqrt, "m:root") is math.sqrt
    assert registry.function("m", "root") is math.sqrt
    assert len(registry) == 2


@pytest.mark.parametrize("thing", [lambda: 1, functools.partial(double), 3, Model()], ids=steady)
def test_what_has_no_name_cannot_be_registered(thing: object) -> None:
    with pytest.raises(TypeError, match="has no name"):
        Registry([thing])


def test_a_name_is_given_once() -> None:
    registry = Registry()
    registry.register(math.sqrt, "m:f")
    with pytest.raises(ValueError, match="m:f is registered already"):
        registry.register(Model, "m:f")
    with pytest.raises(TypeError, match="neither a function nor a class"):
        registry.register(3, "m:three")


def test_what_has_no_code_of_its_own_may_be_sent_but_not_called() -> None:
    registry = Registry()
    assert registry.part("builtins", "ValueError") is ValueError
    assert registry.part("lockstitch.errors", "PeerDiedError") is PeerDiedError
    assert registry.part("torch", "float32") is torch.float32
    assert registry.part("torch", "Size") is torch.Size
    for name in ("eval", "exec", "getattr", "bytearray", "list", "range", "SystemExit", "type"):
        with pytest.raises(SerializationError):
            registry.part("builtins", name)
    with pytest.raises(SerializationError):
        registry.function("builtins", "ValueError")


def test_public_methods_of_registered_classes_may_be_called() -> None:
    registry = Registry([Model])
    registry.check_method(Model(), "forward")
    registry.check_method(Model(), "__call__")
    for value, name in (
        (Model(), "__reduce__"),
        (Model(), "__setattr__"),
        (Model(), "_private"),
        (torch.ones(1), "tolist"),
        (Model, "mro"),
    ):
        with pytest.raises(SerializationError, match="may not be called on this worker"):
            registry.check_method(value, name)
    registry.check_callee(Model())
    for thing in (double, print, ValueError, 3):
        with pytest.raises(SerializationError, match="that is not registered may not be called"):
            registry.check_callee(thing)


def test_what_lockstitch_needs_itself_is_in_every_registry() -> None:
    assert Registry().function("lockstitch.rref.proxy", "run_method").__name__ == "run_method"
