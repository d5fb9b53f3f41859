"""What can be registered, and what becomes of it."""

from __future__ import annotations

import pytest
import torch

from lockstitch import checkpoint, rpc
from lockstitch.checkpoint.registry import CheckpointRegistry, state_of
from lockstitch.checkpoint.structure import Encoder
from lockstitch.nn import RemoteModule
from lockstitch.testing.cluster import LocalCluster


@pytest.fixture
def registered():
    with LocalCluster(1) as cluster, cluster[0].active():
        yield CheckpointRegistry.of(cluster[0])


def test_each_kind_is_saved_and_put_back(registered) -> None:
    model, weight, steps, seen = torch.nn.Linear(2, 1), torch.ones(3), {"n": 1}, [1, 2]
    for name, thing in {"model": model, "weight": weight, "steps": steps, "seen": seen}.items():
        checkpoint.register(name, thing)
    checkpoint.register("model", model)  # again: harmless
    assert registered.names() == ["model", "weight", "steps", "seen"]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    states = {"model": before, "weight": torch.zeros(3), "steps": {"n": 7, "m": 1}, "seen": [3]}
    torch.nn.init.zeros_(model.weight)
    registered.check_fit(states)
    registered.put_back(states)
    assert torch.equal(model.weight, before["weight"])
    assert weight.sum() == 0
    assert (steps, seen) == ({"n": 7, "m": 1}, [3])
    checkpoint.unregister("model")
    checkpoint.unregister("model")
    assert "model" not in registered.names()


def test_a_reference_stands_for_its_value(registered) -> None:
    value = torch.ones(2)
    checkpoint.register("value", rpc.RRef(value))
    assert registered.things(["value"])["value"] is value


def test_what_cannot_be_saved_is_refused_at_once(registered) -> None:
    with pytest.raises(TypeError, match="'n' is of type int: register a tensor, a dict"):
        checkpoint.register("n", 3)
    with pytest.raises(ValueError, match="needs a name"):
        checkpoint.register("", {})
    checkpoint.register("x", {})
    with pytest.raises(ValueError, match="'x' is registered already on worker 'worker0'"):
        checkpoint.register("x", {})


class Holder(torch.nn.Module):
    def __init__(self, **parts: torch.nn.Module) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleDict(parts)


def with_buffer(buffer: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Linear(1, 1)
    module.register_buffer("buffer", buffer)
    return module


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        ({"a": [1, {2}]}, r"x\.a\.1 is of type set"),
        (torch.ones(2, dtype=torch.complex64), r"x is a torch\.complex64 tensor"),
        (torch.ones(2).to_sparse(), r"x is a torch\.float32 tensor of layout torch\.sparse_coo"),
        (with_buffer(torch.ones(2, dtype=torch.complex64)), r"x\.buffer is a torch\.complex64"),
    ],
)
def test_what_save_would_refuse_is_refused_at_once(registered, thing, words) -> None:
    with pytest.raises(TypeError, match=words):
        checkpoint.register("x", thing)
    assert registered.names() == []


def test_a_module_part_of_which_is_elsewhere_is_refused_with_the_part(registered) -> None:
    there = RemoteModule("worker0/cpu", torch.nn.Linear, (1, 1))
    with pytest.raises(TypeError, match=r"x\.inner\.there is a RemoteModule, .* on 'worker0'"):
        checkpoint.register("x", Holder(here=torch.nn.Linear(1, 1), there=there))
    checkpoint.register("there", there)
    assert set(state_of(registered.things(["there"])["there"])) == {"weight", "bias"}


def test_looking_whether_a_state_can_be_saved_copies_nothing() -> None:
    encoder = Encoder(copy=False)
    encoder.encode({"weight": torch.ones(3)}, "x")
    assert encoder.tensors == {}


@pytest.mark.parametrize(
    ("thing", "state", "words"),
    [
        (torch.ones(2), torch.ones(3), r"'x' has the shape \[2\], but was saved as \[3\]"),
        (torch.ones(2), {}, r"'x' has the shape \[2\], but was saved as dict"),
        (torch.nn.Linear(1, 1), {"weight": torch.ones(1, 1)}, "another module: bias differ"),
        (
            torch.nn.Linear(1, 1, bias=False),
            {"weight": torch.ones(2, 1)},
            r"'x.weight' has the shape \[1, 1\], but was saved as \[2, 1\]",
        ),
    ],
)
def test_states_of_another_shape_do_not_fit(registered, thing, state, words) -> None:
    checkpoint.register("x", thing)
    with pytest.raises(ValueError, match=words):
        registered.check_fit({"x": state})


def test_what_was_copied_for_two_saves_is_never_mixed(registered) -> None:
    registered.copy("first", {"a": torch.ones(1)}, own=["a"])
    registered.copy("first", {"b": {"n": 1}})
    registered.copy("second", {"a": torch.ones(2)}, own=["a"])
    with pytest.raises(checkpoint.CheckpointError, match="one at a time"):
        registered.copy("first", {"c": 1})
    with pytest.raises(checkpoint.CheckpointError, match="one at a time"):
        registered.take_copy("first")
    copy = registered.take_copy("second")
    assert copy.tensors["a"].shape == (2,)
    assert copy.plain.keys() == {"a"}
