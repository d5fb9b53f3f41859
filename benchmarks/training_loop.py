"""What the rest of a training loop costs over several owners of parameters, beside a step, and
beside calls that do nothing.

    python -m benchmarks.training_loop [--quick]

A trainer and four owners are processes of this host, each with one thread for arithmetic. What is
compared takes turns, one after the other; figures are medians on the trainer, in milliseconds, and
the median of the ratios. The incumbent has none of these: there a learning rate is changed by
making a new optimizer, and gradients are clipped by functions of the program's own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import nn, optim

from lockstitch import autograd, rpc
from lockstitch.optim import DistributedOptimizer, GradScaler, clip_grad_norm_, parameters_of
from lockstitch.testing.processes import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Callable

OWNERS = ("ps1", "ps2", "ps3", "ps4")
ROWS, WIDTH = 1_000_000, 64
"""Of the table whose learning rate is set."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a third of the turns")
    turns = 60 if parser.parse_args().quick else 180
    print(f"{'':48}{'ours':>9}{'beside':>9}{'ratio':>7}")
    names = ("trainer", *OWNERS)
    with ProcessCluster(names, start_method="spawn", prepare=_use_one_thread) as cluster:
        for measure, arguments in (
            (_set_rates, ()),
            (_clip, ("SGD", 16)),
            (_clip, ("SGD", 512)),
            (_clip, ("Adam", 16)),
            (_clip, ("Adam", 512)),
        ):
            for row, ours, beside in cluster.run("trainer", measure, turns, *arguments):
                ratio = statistics.median(a / b for a, b in zip(ours, beside, strict=True))
                times = "".join(f"{1e3 * statistics.median(each):9.3f}" for each in (ours, beside))
                print(f"{row:48}{times}{ratio:7.2f}", flush=True)


def _use_one_thread(_rank: int) -> None:
    torch.set_num_threads(1)


Result = list[tuple[str, list[float], list[float]]]


def _set_rates(turns: int) -> Result:
    """Sets the learning rate of a large table, beside a call that does nothing."""
    table = rpc.remote("ps1", nn.Embedding, (ROWS, WIDTH))
    optimizer = DistributedOptimizer(optim.Adam, parameters_of(table), lr=0.1)
    with autograd.context() as context_id:
        rows = table.rpc_sync().forward(torch.arange(8))
        autograd.backward(context_id, [rows.sum()])
        optimizer.step(context_id)  # now it has a state
    (group,) = optimizer.param_groups

    def set_rate() -> float:
        group["lr"] = 0.5 * group["lr"] + 0.1
        rate: float = group["lr"]  # here it is sent
        return rate

    def call() -> None:
        rpc.rpc_sync("ps1", _nothing)

    ours, beside = _in_turns(turns, set_rate, call)
    return [(f"set a rate (Adam, {ROWS:,} x {WIDTH}) / no-op", ours, beside)]


def _clip(turns: int, optimizer_class: str, width: int) -> Result:
    """Clips gradients, and makes a scaled step, beside a bare step."""
    modules = [rpc.remote(name, _layers, (width,)) for name in OWNERS]
    references = [each for module in modules for each in parameters_of(module)]
    optimizer = DistributedOptimizer(getattr(optim, optimizer_class), references, lr=1e-3)
    scaler = GradScaler(init_scale=1.0)
    with autograd.context() as context_id:
        x = torch.ones(4, width)
        for module in modules:
            x = module.rpc_sync().forward(x)
        autograd.backward(context_id, [scaler.scale(x.sum())])

        def clip() -> None:
            clip_grad_norm_(optimizer, context_id, 1e-3)

        def only_norm() -> None:
            clip_grad_norm_(optimizer, context_id, 1e6)

        def step() -> None:
            optimizer.step(context_id)

        def scaled_step() -> None:
            scaler.step(optimizer, context_id)
            scaler.update()

        what = f"{optimizer_class}, 4 owners, {8 * width * (width + 1):,} each"
        return [
            (f"{name} / step ({what})", *_in_turns(turns, ours, step))
            for name, ours in (("clip", clip), ("norm", only_norm), ("scaled", scaled_step))
        ]


def _layers(width: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))


def _nothing() -> None:
    pass


def _in_turns(
    turns: int, ours: Callable[[], object], beside: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """The seconds of each turn of both, without those at the beginning."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 10):
        for action, taken in zip((ours, beside), times, strict=True):
            began = time.perf_counter()
            action()
            if turn >= 10:
                taken.append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main()
