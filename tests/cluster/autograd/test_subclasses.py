"""Instances of subclasses of tensors in a context: right gradients, or an error that names them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from lockstitch import autograd, rpc
from lockstitch.errors import DistAutogradError, SerializationError
from tests.cluster.autograd.comparison import OWNED, assert_same, call


class Marked(torch.Tensor):
    """Adds nothing."""


class Gain(torch.nn.Parameter):
    """A parameter of another class."""


@dataclasses.dataclass
class Held:
    tensor: torch.Tensor
    more: Any = None


class Reduced:
    """Says itself how it is pickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        return Reduced, (self.tensor,)


def double(tensor: Any) -> Any:
    while not isinstance(tensor, torch.Tensor):
        if isinstance(tensor, (Held, Reduced)):
            tensor = tensor.tensor
        else:
            tensor = tensor["x"] if isinstance(tensor, dict) else tensor[0]
    assert type(tensor) in (Marked, Gain)
    tensor.mul_(2)
    return tensor.as_subclass(torch.Tensor) * OWNED["w"]


def marked_result(tensor: torch.Tensor) -> Any:
    return [(tensor * OWNED["w"]).as_subclass(Marked)]


def optimized(parameters: Any) -> Any:
    assert all(type(each) is Gain for group in parameters for each in group["params"])
    return parameters[0]["params"][0] * OWNED["w"]


IN = [
    lambda tensor: tensor,
    lambda tensor: [tensor],
    lambda tensor: {"x": (tensor,)},
    Held,
    Reduced,
]


@pytest.mark.parametrize("within", IN, ids=["alone", "list", "dict", "dataclass", "reduce"])
def test_a_subclass_has_its_gradient_wherever_it_stands(cluster, within):
    assert_same(
        cluster,
        lambda leaves: [call_with(within, leaves["x"].tanh().as_subclass(Marked))],
        modes=("smart",),
    )


def call_with(within, tensor):
    """`call`, whose plain way copies only tensors."""
    return call("worker1", double, within(tensor.clone()))


def test_a_subclass_of_parameter_has_its_gradient(cluster):
    gain = Gain(torch.ones(3, dtype=torch.float64))
    OWNED["w"] = torch.full((3,), 2.0, dtype=torch.float64)
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", optimized, args=([{"params": [gain], "lr": 1}],))
        autograd.backward(context_id, [y.sum()])
        assert autograd.get_gradients(context_id)[gain].tolist() == [2.0, 2.0, 2.0]


def test_a_result_of_a_subclass_has_its_gradient(cluster):
    def program(leaves):
        (y,) = call("worker1", marked_result, leaves["x"].tanh())
        assert type(y) is Marked
        return [y.as_subclass(torch.Tensor).sin()]

    assert_same(cluster, program)


# ---------------------------------------------------------------- refused


def pair(tensor: torch.Tensor) -> TwoTensor:
    return TwoTensor(tensor, tensor.clone())


def make_pair(tensor: torch.Tensor) -> Any:
    return {"result": pair(tensor.detach()).requires_grad_()}


def nothing(*_args: Any) -> None: ...


def test_an_argument_whose_gradient_would_be_lost_is_refused_by_class_and_place(cluster):
    wanted = pair(torch.ones(2)).requires_grad_()
    with cluster[0].active(), autograd.context():
        with pytest.raises(
            SerializationError, match=r"TwoTensor that requires grad(.|\n)*args\[1\]\['x'\]\[0\]"
        ):
            rpc.rpc_sync("worker1", nothing, args=(1, {"x": [wanted]}))
        with pytest.raises(SerializationError, match=r"kwargs\['x'\]"):
            rpc.remote("worker1", nothing, kwargs={"x": wanted})
        rpc.rpc_sync("worker1", nothing, args=(wanted.detach(),))
        with torch.no_grad():
            rpc.rpc_sync("worker1", nothing, args=(wanted,))
    with cluster[0].active():
        rpc.rpc_sync("worker1", nothing, args=(wanted,))


def test_a_result_whose_gradient_would_be_lost_is_refused(cluster):
    x = torch.ones(2, requires_grad=True)
    with cluster[0].active(), autograd.context():
        with pytest.raises(SerializationError, match=r"result of .*TwoTensor(.|\n)*\['result'\]"):
            rpc.rpc_sync("worker1", make_pair, args=(x,))
        reference = rpc.remote("worker1", make_pair, args=(x,))
        with pytest.raises(SerializationError, match="value of a reference.*TwoTensor"):
            reference.to_here()


class Split(torch.autograd.Function):
    """Its gradient is of another class than its input."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        return pair(gradient)


def test_a_gradient_that_cannot_cross_ends_the_pass(cluster):
    x = torch.ones(2, requires_grad=True)
    with cluster[0].active(), autograd.context() as context_id:
        y = rpc.rpc_sync("worker1", Split.apply, args=(x,))
        with pytest.raises(DistAutogradError, match="gradient of .*TwoTensor"):
            autograd.backward(context_id, [y.sum()])
