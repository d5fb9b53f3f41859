"""Unfit arguments of an operator are explained by torch's registry; other errors stay."""

from __future__ import annotations

import pytest
import torch

from lockstitch.errors import OperatorArgumentsError
from lockstitch.runtime.operators import explain


def error_of(function, *args, **kwargs) -> TypeError:
    with pytest.raises(TypeError) as caught:
        function(*args, **kwargs)
    return explain(function, args, kwargs, caught.value)


def test_arguments_that_no_schema_takes_are_explained_by_all_schemas() -> None:
    error = error_of(torch.add)
    assert isinstance(error, OperatorArgumentsError)
    assert isinstance(error, RuntimeError)
    assert "Overloaded torch operator invoked from Python failed to match any schema" in str(error)
    assert "received an invalid combination of arguments" in str(error)


def test_errors_of_other_functions_stay_as_they_are() -> None:
    assert type(error_of(len, 3)) is TypeError


def test_an_error_although_a_schema_would_take_the_arguments_stays_as_it_is() -> None:
    original = TypeError("from within")
    assert explain(torch.add, (torch.ones(1), 1), {}, original) is original


def test_each_schema_is_named_once() -> None:
    lines = str(error_of(torch.add, 1, 2, 3, 4, 5)).splitlines()
    assert len(lines) > 5
    assert len(set(lines)) == len(lines)
    assert all(lines)
