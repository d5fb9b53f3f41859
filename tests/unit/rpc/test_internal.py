"""Values as bytes and tensors, with a worker or without."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from lockstitch import rpc
from lockstitch.rpc.internal import (
    PythonUDF,
    RPCExecMode,
    _build_rpc_profiling_key,
    deserialize,
    serialize,
)
from lockstitch.testing.cluster import LocalCluster
from tests.unit.rpc.programs import add


class NestedPickle:
    """An object whose state is itself a serialized call."""

    def __init__(self) -> None:
        self.sum = None

    def __getstate__(self) -> object:
        return serialize(PythonUDF(add, (torch.ones(2), torch.ones(2)), None))

    def __setstate__(self, state: tuple) -> None:
        call = deserialize(*state)
        self.sum = call.func(*call.args)


@pytest.mark.parametrize("value", [None, 3, [1, "a"], {"k": (1, 2)}, add])
def test_plain_values_survive(value) -> None:
    data, tensors = serialize(value)
    assert isinstance(data, bytes)
    assert tensors == []
    assert deserialize(data, tensors) == value


def test_tensors_and_arrays_are_lifted_out() -> None:
    tensor, array = torch.rand(3), np.arange(4.0)
    data, lifted = serialize({"t": tensor, "a": array})
    assert lifted[0] is tensor
    result = deserialize(data, lifted)
    assert result["t"] is tensor
    assert (result["a"] == array).all()


def test_an_object_may_serialize_within_being_serialized() -> None:
    data, tensors = serialize([NestedPickle(), torch.ones(1)])
    nested, _ = deserialize(data, tensors)
    assert torch.equal(nested.sum, 2 * torch.ones(2))


def test_a_reference_is_forked() -> None:
    with LocalCluster(2) as cluster, cluster[0].active():
        reference = rpc.remote("worker1", add, (1, 2))
        assert deserialize(*serialize(reference)).to_here() == 3
        del reference


def test_a_reference_goes_through_no_other_pickler() -> None:
    with LocalCluster(2) as cluster, cluster[0].active():
        reference = rpc.RRef(1)
        with pytest.raises(RuntimeError, match="Can not pickle rref in python pickler"):
            pickle.dumps(reference)
        del reference


@pytest.mark.parametrize("mode", [RPCExecMode.SYNC, RPCExecMode.ASYNC, RPCExecMode.REMOTE])
def test_keys_of_profiles_tell_all(mode) -> None:
    key = _build_rpc_profiling_key(mode, "foo", "worker0", "worker1")
    assert all(word in key for word in (mode.value, "foo", "worker0", "worker1"))
