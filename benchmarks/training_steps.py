"""Training steps of replicas: `hvd.DistributedOptimizer` beside DistributedDataParallel over Gloo,
and beside the same step without any communication.

    python -m benchmarks.training_steps [--ranks 2 4] [--quick] [--only mlp]

Each rank is a process with one thread for arithmetic. The three take turns, one step each, on
models of their own with the same numbers. Figures are medians over all steps, on rank 0, in
milliseconds. `gap closed`: of the time that DDP's step takes longer than the one without
communication, the share that ours saves. At the end the parameters are compared: `equal` bit by
bit, or by how much not.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

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


# The model, a batch of one rank, and how many steps.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], int]] = {
    "mlp": (mlp, lambda: torch.randn(16, 1024), 30),
    "conv net": (conv_net, lambda: torch.randn(8, 3, 32, 32), 30),
    "transformer": (transformer, lambda: torch.randint(0, 2000, (4, 32)), 20),
}
VARIANTS = ("ours", "DDP", "alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="a third of the steps")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    arguments = parser.parse_args()
    heads = "".join(f"{variant:>9}" for variant in VARIANTS)
    print(f"{'step':14}{'ranks':>6}{heads}{'gap closed':>12}  parameters")
    for ranks in arguments.ranks:
        for name in [name for name in CASES if arguments.only in name]:
            with processes(ranks, _train, name, arguments.quick) as pipes:
                (ours, ddp, alone), difference = pipes[0].recv()
            closed = (ddp - ours) / (ddp - alone)
            same = "equal" if difference == 0 else f"differ by {difference:.1e}"
            times = "".join(f"{1e3 * each:9.2f}" for each in (ours, ddp, alone))
            print(f"{name:14}{ranks:6}{times}{closed:12.0%}  {same}", flush=True)


def _train(rank: int, size: int, file: str, pipe, name: str, is_quick: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(file + ".gloo"), rank=rank, world_size=size
    )
    make, draw, steps = CASES[name]
    with open_session(rank, size, dist.FileStore(file)) as session, active(session):
        torch.manual_seed(0)
        first = make()
        models = {variant: copy.deepcopy(first) for variant in VARIANTS}
        optimizers = {
            variant: torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
            for variant, model in models.items()
        }
        optimizers["ours"] = hvd.DistributedOptimizer(
            optimizers["ours"], models["ours"].named_parameters()
        )
        forward = {**models, "DDP": DistributedDataParallel(models["DDP"])}
        times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        torch.manual_seed(1 + rank)
        for step in range(3 + (steps // 3 if is_quick else steps)):
            batch = draw()
            for variant in VARIANTS:
                session.barrier()
                begin = time.perf_counter()
                _step(forward[variant], optimizers[variant], batch)
                if step >= 3:
                    times[variant].append(time.perf_counter() - begin)
        difference = max(
            float((ours - theirs).detach().abs().max())
            for ours, theirs in zip(
                models["ours"].parameters(), models["DDP"].parameters(), strict=True
            )
        )
        pipe.send(([statistics.median(times[variant]) for variant in VARIANTS], difference))
        session.barrier()
    dist.destroy_process_group()


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    result = model(batch)
    functional.mse_loss(result, torch.zeros_like(result)).backward()
    optimizer.step()


if __name__ == "__main__":
    main()
