"""A value on each worker: its methods, functions of it, and its gradient."""

from __future__ import annotations

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import GroupError


class Model:
    def __init__(self, factor: float) -> None:
        self.factor = factor * (rpc.get_worker_info().id + 1)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    async def run_later(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)

    def fail(self) -> None:
        if self.factor == 2:
            raise KeyError("second")


def add_into(value: torch.Tensor, more: float) -> torch.Tensor:
    value += more
    return value.sum()


def apply(model_rref: rpc.RRef, x: torch.Tensor) -> torch.Tensor:
    return model_rref.local_value().run(x)


async def apply_later(value: torch.Tensor, factor: float) -> torch.Tensor:
    return value * factor


@pytest.fixture
def models(cluster) -> rpc.RRefGroup:
    return rpc.group().remote(Model, (1.0,))


def test_methods_run_on_all_values(models) -> None:
    x = torch.ones(1)
    assert [y.item() for y in models.rpc_sync().run(x)] == [1, 2, 3, 4]
    assert [y.item() for y in models.rpc_sync().run_later(x)] == [1, 2, 3, 4]
    assert [y.item() for y in models.rpc_async().run(x).wait()] == [1, 2, 3, 4]
    assert [y.item() for y in models.remote().run(x).to_here()] == [1, 2, 3, 4]
    with pytest.raises(GroupError, match="1 of 4 workers failed .worker1: KeyError"):
        models.rpc_sync().fail()


def test_it_is_a_sequence_of_references(models) -> None:
    assert (len(models), models[1].owner_name()) == (4, "worker1")
    assert [rref.owner_name() for rref in models[2:]] == ["worker2", "worker3"]
    assert [worker.id for worker in models.workers] == [0, 1, 2, 3]
    assert repr(models[:2]) == "<RRefGroup of 2 values on: worker0, worker1>"
    with pytest.raises(IndexError, match="is empty"):
        models[4:]


def test_as_an_argument_each_worker_gets_its_own(models) -> None:
    x = torch.ones(1)
    assert [y.item() for y in rpc.group().call(apply, (models, x))] == [1, 2, 3, 4]
    assert [y.item() for y in rpc.group()[1:3].call(apply, (models,), {"x": x})] == [2, 3]
    with pytest.raises(ValueError, match="worker 'worker0' has none of the values"):
        rpc.group().call(apply, (models[1:], x))


def test_functions_get_the_value_first(cluster) -> None:
    copies = rpc.group().broadcast(torch.zeros(2))
    assert [y.item() for y in copies.call(add_into, (1.0,))] == [2, 2, 2, 2]
    assert copies[1:2].reduce(add_into, (1.0,)).item() == 4
    assert [value.tolist() for value in copies.to_here()] == [[1, 1], [2, 2], [1, 1], [1, 1]]
    assert copies.reduce(apply_later, (2.0,)).tolist() == [10, 10]


def test_broadcast_takes_anything_that_can_be_sent(cluster) -> None:
    value = {"w": torch.ones(2), "name": "x"}
    copies = rpc.group().broadcast(value)
    assert [copy["name"] for copy in copies.to_here()] == ["x"] * 4
    value["w"].zero_()  # what was sent is not changed any more
    assert copies.to_here()[3]["w"].tolist() == [1, 1]


def test_gradient_of_a_broadcast_tensor_is_the_sum_of_all_copies(cluster) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with autograd.context() as context_id:
        copies = rpc.group().broadcast(x)
        doubled = copies.reduce(torch.mul, (2.0,))
        squared = copies[1:].reduce(torch.square)
        autograd.backward(context_id, [(doubled + squared).sum()])
        gradient = autograd.get_gradients(context_id)[x]
    assert gradient.tolist() == (4 * 2 + 3 * 2 * x).tolist()


def is_recording(*_arguments: object) -> bool:
    return torch.is_grad_enabled()


def test_calls_carry_the_modes_of_their_caller_when_asked(cluster) -> None:
    group = rpc.group()
    copies = group.broadcast(torch.ones(1))
    with rpc.carry_modes(), torch.no_grad():
        assert group.call(is_recording) == copies.call(is_recording) == [False] * 4
        assert group.call(is_recording, (copies,)) == group.map(is_recording, "ab") * 2
    assert copies.call(is_recording) == [True] * 4


def test_what_failed_to_be_made_is_told_where_it_is_used(cluster) -> None:
    broken = rpc.group()[1:3].remote(Model, (None,))
    with pytest.raises(GroupError, match="2 of 2 workers failed"):
        broken.to_here()
