"""Compiled functions on the wire."""

from __future__ import annotations

import pickle

import pytest
import torch

from lockstitch.wire.compiled import compile_here, is_compiled, parts_of
from lockstitch.wire.encodings import PicklingRegistry
from lockstitch.wire.pickling import pack
from lockstitch.wire.unpickling import unpack


def double(x):
    return x * 2


def test_other_functions_are_not_compiled():
    for each in (double, torch.sin, 5, torch.nn.Linear):
        assert not is_compiled(each)


@pytest.mark.slow
def test_a_compiled_function_is_compiled_once_where_it_arrives():
    compiled = torch.compile(double, backend="eager", dynamic=True)
    assert is_compiled(compiled)
    again = [compile_here(*pickle.loads(pickle.dumps(parts_of(compiled)))) for _ in range(2)]
    assert again[0] is again[1]
    assert again[0] is not compiled
    assert is_compiled(again[0])
    assert again[0](torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.slow
def test_a_payload_may_hold_one():
    registry = PicklingRegistry()
    compiled = torch.compile(double, backend="eager")
    payload, _ = pack({"f": compiled, "x": torch.ones(2)}, registry)
    value = unpack(payload, registry)
    assert is_compiled(value["f"])
    assert value["f"](value["x"]).tolist() == [2.0, 2.0]
