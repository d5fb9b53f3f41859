"""Functions are named if they can be found again by their name, and travel by value if not."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import pytest
import torch

from lockstitch.errors import SerializationError
from lockstitch.runtime.functions import (
    BY_VALUE,
    QUICK_STREAK,
    KnownFunction,
    OutgoingFunctions,
    name_of,
    qualified_name,
    resolve,
)
from tests.labels import steady


def plain() -> None: ...


def decorated_by(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@decorated_by
def decorated() -> None: ...


class Holder:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    class Inner:
        @staticmethod
        def static() -> None: ...


NOT_A_FUNCTION = 3


@pytest.mark.parametrize(
    "function",
    [
        plain,
        decorated,
        Holder,
        Holder.Inner,
        Holder.static,
        Holder.Inner.static,
        Holder.method,
        min,
        math.sin,
        operator.add,
        torch.add,
        torch.zeros,
        torch.nn.functional.relu,
        torch.nn.functional.linear,
        torch.nn.Linear,
        dict,
    ],
    ids=steady,
)
def test_name_leads_back_to_the_very_function(function: Any) -> None:
    name = qualified_name(function)
    assert name is not None
    assert resolve(name) is function


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        Holder().method,
        Holder.of_class,
        functools.partial(plain),
        torch.nn.Linear(1, 1),
        [].append,
        "text".upper,
    ],
    ids=steady,
)
def test_what_no_module_holds_has_no_name(function: Any) -> None:
    assert qualified_name(function) is None
    assert OutgoingFunctions(10).define(function) == (BY_VALUE, None)


def test_local_function_and_replaced_function_have_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def local() -> None: ...

    assert qualified_name(local) is None
    original = plain
    monkeypatch.setattr(f"{__name__}.plain", local)
    assert qualified_name(original) is None


def test_function_without_a_usable_module_or_name() -> None:
    def odd() -> None: ...

    odd.__module__ = None  # type: ignore[assignment]
    assert qualified_name(odd) is None
    odd.__module__, odd.__qualname__ = "no.such.module", "odd"
    assert qualified_name(odd) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no.such.module:f", "ModuleNotFoundError"),
        (f"{__name__}:absent", "AttributeError"),
        (f"{__name__}:Holder.absent", "AttributeError"),
        (f"{__name__}:NOT_A_FUNCTION", "is no function"),
    ],
)
def test_name_that_leads_nowhere(name: str, reason: str) -> None:
    with pytest.raises(SerializationError, match=reason):
        resolve(name)


# ---------------------------------------------------------------- numbers


def test_definition_goes_along_until_it_was_sent() -> None:
    functions = OutgoingFunctions(10)
    number, definition = functions.define(plain)
    assert definition == f"{__name__}:plain".encode()
    assert functions.define(plain) == (number, definition)
    functions.mark_sent(plain, number)
    assert functions.define(plain) == (number, None)
    other, _ = functions.define(min)
    assert other not in (number, BY_VALUE)


def test_beyond_the_limit_every_call_spells_its_function_out() -> None:
    functions = OutgoingFunctions(1)
    functions.mark_sent(plain, functions.define(plain)[0])
    for _ in range(2):
        number, definition = functions.define(min)
        assert definition == b"builtins:min"
        functions.mark_sent(min, number)
    assert len(functions.sent) == 1


def test_callable_that_cannot_be_hashed_goes_by_value() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    assert OutgoingFunctions(10).define(Unhashable()) == (BY_VALUE, None)


def after(*seconds: float) -> KnownFunction:
    known = KnownFunction("builtins:abs")
    for each in seconds:
        known.note(each)
    return known


def test_a_function_is_quick_once_it_was_so_often_enough_in_a_row() -> None:
    assert not after(*[10e-6] * (QUICK_STREAK - 1)).is_quick
    assert after(*[10e-6] * QUICK_STREAK).is_quick
    assert not after(*[10e-6] * (QUICK_STREAK - 1), 200e-6, 10e-6).is_quick


def test_a_function_that_is_not_quick_may_still_be_short() -> None:
    short = after(*[200e-6] * QUICK_STREAK)
    assert short.is_short
    assert not short.is_quick
    assert not after(*[200e-6] * QUICK_STREAK, 1e-3).is_short
    assert not after(*[800e-6] * 100).is_short
    assert after(*[10e-6] * QUICK_STREAK).is_short


def test_a_lapse_of_a_quick_function_is_forgiven_but_not_many() -> None:
    long_proved = [10e-6] * 100
    assert after(*long_proved, 200e-6).is_quick
    assert not after(*long_proved, *[200e-6] * 3).is_quick
    assert not after(*[200e-6] * 100).is_quick


def test_a_function_that_was_far_too_slow_begins_anew() -> None:
    known = after(*[10e-6] * 100, 2e-3)
    assert known.streak == 0


def test_known_function_is_resolved_once() -> None:
    known = KnownFunction(f"{__name__}:plain")
    assert known.resolved() is plain
    known.qualified = "no.such:thing"
    assert known.resolved() is plain


def test_messages_name_functions_as_their_modules_do() -> None:
    assert torch.mul.__qualname__ != "mul"
    assert name_of(torch.mul) == "torch:mul"
    assert name_of(plain) == f"{__name__}:plain"
    assert name_of(Holder.static) == f"{__name__}:Holder.static"
    assert name_of(dict.get) == "dict.get"
    assert name_of("to_here") == "to_here"
