"""Tensors on an accelerator cross by host memory, and arrive on the device of the same name."""

from __future__ import annotations

import pytest
import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.testing.cluster import LocalCluster

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # What torch says where the first thing that a thread does on a device is a product of matrices.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]


def _echo(value: torch.Tensor) -> torch.Tensor:
    return value


def _device_of(value: torch.Tensor) -> str:
    return str(value.device)


def _layer(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(tensor @ weight)


@pytest.mark.parametrize("shape", [(), (4,), (300, 300), (0, 3)])
def test_a_tensor_arrives_on_the_device_of_the_same_name(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, device="cuda:0")
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        assert rpc.rpc_sync("worker1", _device_of, (tensor,)) == "cuda:0"
        echoed = rpc.rpc_sync("worker1", _echo, (tensor,))
    assert echoed.device == tensor.device
    assert torch.equal(echoed, tensor)


def test_tensors_of_both_kinds_travel_together() -> None:
    mixed = {"host": torch.ones(2), "device": torch.ones(3, device="cuda"), "n": 1}
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        echoed = rpc.rpc_sync("worker1", _echo, (mixed,))  # type: ignore[arg-type]
    assert echoed["host"].device.type == "cpu"
    assert echoed["device"].device.type == "cuda"


def test_one_backward_pass_over_two_workers_gives_the_gradients_of_one_process() -> None:
    torch.manual_seed(0)
    first = torch.randn(8, 8, device="cuda", dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, 8, device="cuda", dtype=torch.float64, requires_grad=True)
    with (
        LocalCluster(2) as cluster,
        cluster["worker0"].active(),
        dist_autograd.context() as context,
    ):
        hidden = rpc.rpc_sync("worker1", _layer, (first * 2, weight))
        loss = (hidden * hidden + rpc.rpc_sync("worker1", _layer, (hidden, weight))).sum()
        dist_autograd.backward(context, [loss])
        gradients = dist_autograd.get_gradients(context)
    alone = _layer(first * 2, weight)
    (alone * alone + _layer(alone, weight)).sum().backward()
    for leaf in (first, weight):
        assert gradients[leaf].device == leaf.device
        torch.testing.assert_close(gradients[leaf], leaf.grad, rtol=0, atol=1e-12)
