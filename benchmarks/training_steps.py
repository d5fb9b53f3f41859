"""Training steps of replicas: `hvd.DistributedOptimizer` and DistributedDataParallel over
`lockstitch.c10d`, beside DistributedDataParallel over Gloo and the same step without any
communication; and of `fully_shard` over both.

    python -m benchmarks.training_steps [--ranks 2 4] [--quick] [--only mlp]

Each rank is a process with one thread for arithmetic. All take turns, one step each, on models of
their own with the same numbers. Figures are medians over all steps, on rank 0, in milliseconds.
`closed`: of the time that a step over Gloo takes longer than the one without communication, the
share that ours saves, by `hvd` and by the process group. At the end the parameters are compared
with those over Gloo: `equal` bit by bit, or by how much not.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import lockstitch.c10d  # noqa: F401 - makes the backend known
from benchmarks.collectives import processes
from lockstitch import hvd
from lockstitch.collectives import open_session
from lockstitch.hvd.job import active

if TYPE_CHECKING:
    from collections.abc import Callable


def mlp() -> nn.Module:
    """10 million parameters."""
    return nn.Sequential(nn.Linear(1024, 3072), nn.ReLU(), nn.Linear(3072, 2048), nn.ReLU()).append(
        nn.Linear(2048, 256)
    )


def conv_net() -> nn.Module:
    """400 thousand, in many small tensors."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        if inputs != outputs:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def transformer() -> nn.Module:
    """6 million."""
    layer = nn.TransformerEncoderLayer(320, 4, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(2000, 320),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Linear(320, 320),
    )


@dataclass(frozen=True)
class Case:
    """`draw`: a batch of one rank; `variants`: how a step is done, the last two over Gloo and
    without any communication."""

    make: Callable[[], nn.Module]
    draw: Callable[[], torch.Tensor]
    steps: int
    variants: tuple[str, ...] = ("hvd", "DDP", "Gloo", "alone")


CASES = {
    "mlp": Case(mlp, lambda: torch.randn(16, 1024), 30),
    "conv net": Case(conv_net, lambda: torch.randn(8, 3, 32, 32), 30),
    "transformer": Case(transformer, lambda: torch.randint(0, 2000, (4, 32)), 20),
    "transformer, sharded": Case(
        transformer,
        lambda: torch.randint(0, 2000, (4, 32)),
        20,
        ("FSDP2", "FSDP2 over Gloo", "alone"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="a third of the steps")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    arguments = parser.parse_args()
    print(f"{'step':22}{'ranks':>6}  ms, the share of the gap that is closed, and the parameters")
    for ranks in arguments.ranks:
        for name, case in CASES.items():
            if arguments.only not in name:
                continue
            with processes(ranks, _train, name, arguments.quick) as pipes:
                times, differences = pipes[0].recv()
            *_, gloo, alone = times
            figures = []
            for variant, each, difference in zip(case.variants, times, differences, strict=True):
                figures.append(f"{variant} {1e3 * each:.2f}")
                if variant not in case.variants[-2:]:
                    same = "equal" if difference == 0 else f"differ by {difference:.1e}"
                    figures[-1] += f" ({(gloo - each) / (gloo - alone):.0%}, {same})"
            print(f"{name:22}{ranks:6}  {'   '.join(figures)}", flush=True)


def _train(rank: int, size: int, file: str, pipe: Any, name: str, is_quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(file + ".gloo"), rank=rank, world_size=size
    )
    ours = dist.new_group(backend="lockstitch")
    case = CASES[name]
    with open_session(rank, size, dist.FileStore(file)) as session, active(session):
        torch.manual_seed(0)
        first = case.make()
        trained = [_prepared(variant, copy.deepcopy(first), ours) for variant in case.variants]
        times: list[list[float]] = [[] for _ in trained]
        torch.manual_seed(1 + rank)
        for step in range(3 + (case.steps // 3 if is_quick else case.steps)):
            batch = case.draw()
            for measured, (model, optimizer) in zip(times, trained, strict=True):
                session.barrier()
                begin = time.perf_counter()
                _step(model, optimizer, batch)
                if step >= 3:
                    measured.append(time.perf_counter() - begin)
        over_gloo = _numbers(trained[-2][0])
        differences = [
            float((_numbers(model) - over_gloo).abs().max()) for model, _ in trained[:-1]
        ]
        pipe.send(([statistics.median(each) for each in times], [*differences, 0.0]))
        session.barrier()
    dist.destroy_process_group()


def _prepared(
    variant: str, model: nn.Module, ours: dist.ProcessGroup
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model as it is called, and its optimizer."""
    group = ours if variant in ("DDP", "FSDP2") else dist.group.WORLD
    assert group is not None
    if variant.startswith("FSDP2"):
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model.modules():
            if isinstance(layer, nn.TransformerEncoderLayer):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if variant == "hvd":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    elif variant in ("DDP", "Gloo"):
        model = DistributedDataParallel(model, process_group=group)
    return model, optimizer


def _numbers(model: nn.Module) -> torch.Tensor:
    """All parameters, or this rank's shards of them, as one vector."""
    parts = [getattr(each, "_local_tensor", each) for each in model.parameters()]
    return torch.cat([each.detach().reshape(-1) for each in parts])


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    result = model(batch)
    functional.mse_loss(result, torch.zeros_like(result)).backward()
    optimizer.step()


if __name__ == "__main__":
    main()
