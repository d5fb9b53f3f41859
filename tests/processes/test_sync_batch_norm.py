"""torch's SyncBatchNorm over the backend, beside Gloo, against one process with the whole batch.

torch has its kernels for GPUs only, and refuses tensors of the CPU. Here they are written down in
torch for the CPU, in the processes of the ranks; what passes between the ranks, and when, is all
torch's own (`torch.nn.modules._functions.SyncBatchNorm`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.modules._functions import SyncBatchNorm as Function
from torch.nn.parallel import DistributedDataParallel

from tests.processes.groups import results
from tests.processes.ranks import RankProcesses

pytestmark = [
    pytest.mark.slow,
    # torch 2.13 has other names for some functions, which older ones lack.
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
]
STEPS = 3
ROWS = {"even": (4, 4, 4), "uneven": (5, 1, 3), "empty": (4, 0, 2)}


# ---------------------------------------------------------------- the kernels


def _reduced(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, 1).flatten(1).sum(1)


def _along(channels: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return channels.view(1, -1, *[1] * (tensor.ndim - 2))


def stats(tensor: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    rows = tensor.transpose(0, 1).flatten(1)
    return rows.mean(1), (rows.var(1, unbiased=False) + eps).rsqrt()


def gather_stats(
    _tensor: Any, means: Any, inverse: Any, mean_kept: Any, var_kept: Any, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    momentum, eps, counts = rest
    share = (counts / counts.sum()).view(-1, 1)
    mean = (means * share).sum(0)
    var = ((inverse**-2 - eps + (means - mean) ** 2) * share).sum(0)
    count = counts.sum()
    mean_kept.lerp_(mean, momentum)
    var_kept.lerp_(var * count / (count - 1), momentum)
    return mean, (var + eps).rsqrt()


def elements(tensor: Any, weight: Any, bias: Any, mean: Any, inverse: Any, _eps: float) -> Any:
    scaled = (tensor - _along(mean, tensor)) * _along(inverse * weight, tensor)
    return scaled + _along(bias, tensor)


def backward_reduce(grad: Any, tensor: Any, mean: Any, inverse: Any, *_: Any) -> tuple[Any, ...]:
    total = _reduced(grad)
    of_centred = _reduced(grad * (tensor - _along(mean, tensor)))
    return total, of_centred, of_centred * inverse, total.clone()


def backward_elements(grad: Any, tensor: Any, mean: Any, inverse: Any, *rest: Any) -> Any:
    weight, total, of_centred, counts = rest
    count = counts.sum()
    centred = (tensor - _along(mean, tensor)) * _along(inverse**2 * of_centred / count, tensor)
    return (grad - _along(total / count, tensor) - centred) * _along(inverse * weight, tensor)


def write_kernels_down() -> torch.library.Library:
    """They are there as long as what is returned."""
    kernels = torch.library.Library("aten", "IMPL")
    for name, kernel in {
        "batch_norm_stats": stats,
        "batch_norm_gather_stats_with_counts": gather_stats,
        "batch_norm_elemt": elements,
        "batch_norm_backward_reduce": backward_reduce,
        "batch_norm_backward_elemt": backward_elements,
    }.items():
        kernels.impl(name, kernel, "CPU")
    return kernels


class Synchronized(nn.BatchNorm1d):
    """What torch's layer does in training; that layer, and DistributedDataParallel where it finds
    one, refuse the CPU before they begin."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        group = distributed.group.WORLD
        result: torch.Tensor = Function.apply(  # type: ignore[no-untyped-call]
            batch,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.eps,
            self.momentum,
            group,
            distributed.get_world_size(),
        )
        return result


# ---------------------------------------------------------------- programs


def batches(step: int, rows: tuple[int, ...]) -> list[torch.Tensor]:
    whole = torch.randn(sum(rows), 3, 2, generator=torch.Generator().manual_seed(step))
    return list(whole.split(list(rows)))


def gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros on a rank without any rows: there it has none."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def steps(rank: int, rows: tuple[int, ...]) -> torch.Tensor:
    """Outputs, gradients and running statistics of the layer alone."""
    kernels = write_kernels_down()
    layer = Synchronized(3)
    found = []
    for step in range(STEPS):
        batch = batches(step, rows)[rank].requires_grad_()
        output = layer(batch)
        output.pow(3).sum().backward()
        found += [output, gradient(batch)]
    found += [gradient(layer.weight), gradient(layer.bias), layer.running_mean, layer.running_var]
    del kernels
    return torch.cat([each.detach().flatten() for each in found])


def even(rank: int) -> torch.Tensor:
    return steps(rank, ROWS["even"])


def uneven(rank: int) -> torch.Tensor:
    return steps(rank, ROWS["uneven"])


def empty(rank: int) -> torch.Tensor:
    return steps(rank, ROWS["empty"])


def network(norm: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(3, 4, 1), norm(4), nn.Flatten(), nn.Linear(8, 2))


def kept(module: nn.Module) -> torch.Tensor:
    """Parameters and running statistics."""
    state = module.state_dict()
    return torch.cat([state[each].flatten() for each in state if "num_batches" not in each])


def replicas(rank: int) -> torch.Tensor:
    """Parameters of a DistributedDataParallel with such a layer."""
    kernels = write_kernels_down()
    module = DistributedDataParallel(network(Synchronized))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(batches(step, ROWS["uneven"])[rank]).square().sum().backward()
        optimizer.step()
    del kernels
    return kept(module.module)


# ---------------------------------------------------------------- one process


def alone(rows: tuple[int, ...]) -> list[torch.Tensor]:
    """What each rank is to find."""
    layer = nn.BatchNorm1d(3)
    found: list[list[torch.Tensor]] = [[] for _ in rows]
    weights, biases = [torch.zeros(3) for _ in rows], [torch.zeros(3) for _ in rows]
    for step in range(STEPS):
        parts = [each.requires_grad_() for each in batches(step, rows)]
        outputs = layer(torch.cat(parts)).split(list(rows))
        for rank, output in enumerate(outputs):
            loss = output.pow(3).sum()
            mine = torch.autograd.grad(loss, [layer.weight, layer.bias], retain_graph=True)
            weights[rank] += mine[0]
            biases[rank] += mine[1]
        grads = torch.autograd.grad(sum(each.pow(3).sum() for each in outputs), parts)
        for rank in range(len(rows)):
            found[rank] += [outputs[rank], grads[rank]]
    running = [layer.running_mean, layer.running_var]
    return [
        torch.cat([x.detach().flatten() for x in [*each, weights[rank], biases[rank], *running]])
        for rank, each in enumerate(found)
    ]


def replicas_alone() -> torch.Tensor:
    module, rows = network(nn.BatchNorm1d), ROWS["uneven"]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        (module(torch.cat(batches(step, rows))).square().sum() / len(rows)).backward()
        optimizer.step()
    return kept(module)


def test_layer_and_replicas_give_what_one_process_gives_and_what_gloo_gives() -> None:
    works = [even, uneven, empty, replicas]
    with RankProcesses(3) as ranks:
        found = ranks.run(results, works)
    expected = {work.__name__: alone(ROWS[work.__name__]) for work in works[:3]}
    expected["replicas"] = [replicas_alone()] * 3
    for rank, (ours, of_gloo) in enumerate(found):
        assert ours.keys() == of_gloo.keys() == expected.keys()
        for name, values in ours.items():
            mine, gloos = torch.tensor(values), torch.tensor(of_gloo[name])
            torch.testing.assert_close(mine, gloos, rtol=1e-5, atol=1e-6)  # it sums in other orders
            torch.testing.assert_close(mine, expected[name][rank], rtol=1e-4, atol=1e-5)
