"""States come back as they were, also those that JSON alone cannot say."""

from __future__ import annotations

import json
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from lockstitch.checkpoint.structure import Encoder, decode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def there_and_back(state):
    encoder = Encoder()
    written = json.loads(json.dumps(encoder.encode(state, "x")))
    return decode(written, encoder.tensors.__getitem__)


@given(PLAIN)
def test_plain_states_come_back(state) -> None:
    assert there_and_back(state) == state


def test_an_optimizers_state_comes_back() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state, back = optimizer.state_dict(), there_and_back(optimizer.state_dict())
    assert back["param_groups"] == state["param_groups"]
    for number, values in state["state"].items():
        for key, value in values.items():
            assert torch.equal(back["state"][number][key], value)


def test_what_is_written_is_a_copy_and_is_written_once() -> None:
    tied = torch.arange(6.0).reshape(2, 3)
    encoder = Encoder()
    encoder.encode(OrderedDict(a=tied, b=tied, c=tied[:, :1], d=tied.t()), "m")
    assert sorted(encoder.tensors) == ["m.a", "m.c", "m.d"]
    tied.zero_()
    assert encoder.tensors["m.a"].sum() == 15
    assert all(each.is_contiguous() for each in encoder.tensors.values())


@pytest.mark.parametrize(
    "state",
    [
        {"a": {"b": torch.ones(2)}, "a.b": torch.zeros(2)},
        {1: torch.ones(2), "1": torch.zeros(2)},
        {
            "a": [torch.ones(1), torch.zeros(1)],
            "a.0": torch.full((1,), 2.0),
            "a.0#2": torch.ones(1),
        },
    ],
)
def test_tensors_whose_paths_read_alike_stay_two(state) -> None:
    back = there_and_back(state)
    torch.testing.assert_close(back, state, rtol=0, atol=0)


def test_a_view_whose_sign_is_turned_is_another_tensor() -> None:
    numbers = torch.tensor([1 + 2j, 3 + 4j])
    turned, plain = there_and_back([numbers.conj().imag, numbers.imag])
    assert turned.tolist() == [-2, -4]
    assert plain.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, {2}]}, "x.a.1 is of type set"),
        ({"f": len}, "x.f is of type builtin"),
        ({"z": torch.zeros(2, dtype=torch.complex64)}, "x.z is a torch.complex64"),
        ({"s": torch.zeros(2).to_sparse()}, "x.s is a"),
        ({"m": torch.zeros(2, device="meta")}, "x.m is a Tensor on meta, which has no memory"),
        ({"t": TwoTensor(torch.ones(2), torch.ones(2))}, "x.t is a TwoTensor on cpu, which has no"),
    ],
)
def test_what_cannot_be_written_is_named(state, place) -> None:
    with pytest.raises(TypeError, match=place):
        Encoder().encode(state, "x")


@pytest.mark.parametrize("written", [{"$x": 1}, {"$tensor": 3}, {"$tuple": {}}, {"$dict": 1}])
def test_what_nobody_wrote_is_refused(written) -> None:
    with pytest.raises(ValueError, match="nothing that a checkpoint holds"):
        decode(written, {}.__getitem__)
