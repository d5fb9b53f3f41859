"""Steps of a transformer in stages: `lockstitch.nn.Pipeline` beside torch.distributed.pipelining
over Gloo, both by 1F1B.

    python -m benchmarks.pipelines [--stages 2 4] [--quick] [--only small]

Each stage is a process of this host with one thread for arithmetic; the first one is also the
driver. The two take turns, one step each, on models of their own with the same numbers: forward,
backward, and a step of SGD on each worker. Figures are medians on the first process, in
milliseconds, and the median of the ratios of steps per second; `bubble` is the share of time in
which our workers waited. At the end the parameters are compared.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed as dist
from torch import nn, optim
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from lockstitch import autograd, rpc
from lockstitch.nn import Pipeline
from lockstitch.optim import DistributedOptimizer
from lockstitch.testing.processes import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Callable


class Case(NamedTuple):
    """A transformer and its batches. Each stage has `layers` of `width`."""

    width: int
    layers: int
    tokens: int
    rows: int
    chunks: int
    steps: int


CASES = {
    # Kilobytes between stages: what matters is how soon they arrive.
    "small micro-batches": Case(64, 1, 16, 16, 16, 40),
    # A megabyte between stages, and little work on it.
    "long sequences": Case(256, 1, 512, 8, 8, 15),
    # Work, and little to send.
    "much work": Case(320, 2, 64, 16, 8, 15),
}
RATE = 1e-3
WARM_UP = 2
_MOST_SECONDS = 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="a third of the steps")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    arguments = parser.parse_args()
    heads = "".join(f"{head:>9}" for head in ("stages", "ours", "torch", "ratio", "bubble"))
    print(f"{'transformer':22}{heads}  parameters")
    for stages in arguments.stages:
        for name, case in CASES.items():
            if arguments.only in name:
                _print(name, stages, *_measure(case, stages, arguments.quick))


def _measure(
    case: Case, stages: int, is_quick: bool
) -> tuple[list[float], list[float], list[float], float]:
    steps = WARM_UP + (case.steps // 3 if is_quick else case.steps)
    names = [f"stage{number}" for number in range(stages)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ProcessCluster(names, start_method="spawn", prepare=_use_one_thread) as cluster:
        return cluster.start(names[0], _drive, store.port, case, stages, steps).result(
            _MOST_SECONDS
        )


def _print(
    name: str,
    stages: int,
    ours: list[float],
    theirs: list[float],
    bubbles: list[float],
    difference: float,
) -> None:
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    times = "".join(f"{1e3 * statistics.median(each):9.2f}" for each in (ours, theirs))
    share = f"{statistics.median(bubbles):9.0%}"
    print(f"{name:22}{stages:9}{times}{ratio:9.2f}{share}  differ by {difference:.1e}", flush=True)


def _use_one_thread(_rank: int) -> None:
    torch.set_num_threads(1)


def _stage(case: Case, number: int) -> nn.Module:
    torch.manual_seed(number)
    layers = [
        nn.TransformerEncoderLayer(
            case.width, 4, 2 * case.width, dropout=0.0, batch_first=True, norm_first=True
        )
        for _ in range(case.layers)
    ]
    return nn.Sequential(*layers)


class Theirs:
    """A rank of torch.distributed.pipelining; the same on each process."""

    def __init__(self, port: int, case: Case, module: nn.Module, rank: int, size: int) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        self._rank, self._is_last = rank, rank + 1 == size
        self.module = copy.deepcopy(module)
        stage = PipelineStage(self.module, rank, size, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, case.chunks, loss_fn=functional.mse_loss)
        self._optimizer = optim.SGD(self.module.parameters(), lr=RATE)
        dist.barrier()  # before ours takes its first step

    def step(self, batch: torch.Tensor, target: torch.Tensor) -> None:
        """One step of this rank."""
        self._optimizer.zero_grad()
        args = (batch,) if self._rank == 0 else ()
        kwargs: dict[str, Any] = {"target": target, "losses": []} if self._is_last else {}
        self._schedule.step(*args, **kwargs)
        self._optimizer.step()


def _batches(case: Case, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(99)
    shape = case.rows, case.tokens, case.width
    return [(torch.randn(shape), torch.randn(shape)) for _ in range(steps)]


def _take_part(
    port: int, case: Case, stage: rpc.RRef[nn.Module], rank: int, size: int, steps: int
) -> list[torch.Tensor]:
    """What the other ranks do; returns their parameters."""
    batches = _batches(case, steps)  # before a step of ours, which draws random numbers too
    theirs = Theirs(port, case, stage.local_value(), rank, size)
    for batch, target in batches:
        dist.barrier()  # meanwhile the driver carries out a step of ours
        theirs.step(batch, target)
    dist.destroy_process_group()
    return [each.detach() for each in theirs.module.parameters()]


def _parameters(rref: rpc.RRef[nn.Module]) -> list[torch.Tensor]:
    return [each.detach() for each in rref.local_value().parameters()]


def _drive(
    port: int, case: Case, size: int, steps: int
) -> tuple[list[float], list[float], list[float], float]:
    stages = [rpc.remote(f"stage{number}", _stage, (case, number)) for number in range(size)]
    pipeline = Pipeline(stages, "1f1b", case.chunks)
    others = [
        rpc.rpc_async(
            f"stage{rank}", _take_part, (port, case, stages[rank], rank, size, steps), timeout=0
        )
        for rank in range(1, size)
    ]
    batches = _batches(case, steps)
    theirs = Theirs(port, case, stages[0].local_value(), 0, size)
    optimizer = DistributedOptimizer(optim.SGD, pipeline.remote_parameters(), lr=RATE)
    bubbles: list[float] = []

    def step(batch: torch.Tensor, target: torch.Tensor) -> None:
        with autograd.context() as context_id:
            pipeline.step(context_id, batch, target, functional.mse_loss)
            optimizer.step(context_id)
        assert pipeline.last_step is not None
        bubbles.append(pipeline.last_step.bubble)

    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for batch in batches:
        times["ours"].append(_seconds(step, *batch))
        dist.barrier()
        times["theirs"].append(_seconds(theirs.step, *batch))
    dist.destroy_process_group()
    last = [[each.detach() for each in theirs.module.parameters()], *(o.wait() for o in others)]
    own = [rpc.rpc_sync(each.owner(), _parameters, (each,)) for each in stages]
    difference = max(
        float((a - b).abs().max())
        for pair in zip(own, last, strict=True)
        for a, b in zip(*pair, strict=True)
    )
    return times["ours"][WARM_UP:], times["theirs"][WARM_UP:], bubbles[WARM_UP:], difference


def _seconds(step: Callable[..., None], *args: torch.Tensor) -> float:
    begin = time.perf_counter()
    step(*args)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
