"""What a second-order pass over two workers costs, beside the same in one process.

    python -m benchmarks.derivatives [--quick]

A gradient penalty: the slope of a loss at a batch, by a pass that creates a graph, and then, timed,
a pass from the loss and what is computed of the slope, which goes through both graphs. The
allowance is one and a half times the time of that pass in one process, and twice what the messages
of a first-order pass take: the time of such a pass over the workers less that of one in one
process. Both workers are processes of this host, each with one thread for arithmetic. What is
compared takes turns; figures are medians in milliseconds. The incumbent has no higher derivatives.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lockstitch import autograd, rpc
from lockstitch.testing.processes import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

WIDTH = 576  # three layers of 576 × 576: 997,056 parameters
HOPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a third of the turns")
    turns = 40 if parser.parse_args().quick else 120
    print(f"{'':44}{'ours':>9}{'plain':>9}{'messages':>9}{'allowed':>9}{'share':>7}")
    with ProcessCluster(2, start_method="spawn", prepare=_use_one_thread) as cluster:
        for form in FORMS:
            for way in ("grad", "backward"):
                times = cluster.run("worker0", measure, form, way, turns)
                ours, plain, messages = (1e3 * each for each in times)
                allowed = 1.5 * plain + 2 * messages
                figures = "".join(f"{each:9.3f}" for each in (ours, plain, messages, allowed))
                print(f"{form + ', by ' + way:44}{figures}{ours / allowed:7.2f}", flush=True)


def _use_one_thread(_rank: int) -> None:
    torch.set_num_threads(1)


@functools.cache
def mlp() -> nn.Sequential:
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def run_mlp(batch: Tensor) -> Tensor:
    result: Tensor = mlp()(batch)
    return result


def cube(x: Tensor) -> Tensor:
    return x * x * x


def chain(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    for _ in range(HOPS):
        x = step(x).tanh()
    return x


FORMS: dict[str, tuple[tuple[int, ...], Callable[[Callable[..., Tensor], Tensor], Tensor]]] = {
    "one call": ((4,), lambda call, x: call(cube, x.sin())),
    f"chain of {HOPS} calls": ((4,), lambda call, x: chain(lambda y: call(cube, y), x)),
    "3-layer MLP, 1M parameters": ((32, WIDTH), lambda call, x: call(run_mlp, x)),
}
"""The shape of the batch, and what is computed of it by `call(function, tensor)`."""


def call_there(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    result: Tensor = rpc.rpc_sync("worker1", function, args=(x,))
    return result


def call_here(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x)


def measure(form: str, way: str, turns: int) -> tuple[float, float, float]:
    """The medians of the second pass over workers, and in one process, and of what messages take;
    runs on worker 0."""
    shape, compute = FORMS[form]
    rows = []
    for turn in range(turns):
        x = torch.rand(shape, requires_grad=True)
        with autograd.context() as context_id:
            ours = penalty_there(compute(call_there, x).sum(), x, context_id, way)
        with autograd.context() as context_id:
            loss = compute(call_there, x).sum()
            start = time.perf_counter()
            autograd.backward(context_id, [loss])
            first = time.perf_counter() - start
        plain = penalty_here(compute(call_here, x).sum(), x)
        loss = compute(call_here, x).sum()
        mlp().zero_grad()
        start = time.perf_counter()
        loss.backward()
        if turn >= turns // 10:
            rows.append((ours, plain, first - (time.perf_counter() - start)))
    ours, plain, messages = (statistics.median(column) for column in zip(*rows, strict=True))
    return ours, plain, messages


def penalty_there(loss: Tensor, x: Tensor, context_id: int, way: str) -> float:
    slope: Any
    if way == "grad":
        slope = autograd.grad(context_id, loss, x, create_graph=True)[0]
    else:
        autograd.backward(context_id, [loss], create_graph=True)
        slope = autograd.get_gradients(context_id)[x]
    root = loss + (slope.norm() - 1) ** 2
    start = time.perf_counter()
    autograd.backward(context_id, [root])
    return time.perf_counter() - start


def penalty_here(loss: Tensor, x: Tensor) -> float:
    mlp().zero_grad()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    root = loss + (slope.norm() - 1) ** 2
    start = time.perf_counter()
    root.backward()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
