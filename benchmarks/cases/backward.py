"""Backward passes: one forward each, of which only the backward is timed.

`h` is always the result of an operation here, so that its gradient has to come back and go on.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from benchmarks.cases.timing import Sample, timed_backward, timed_local_backward
from benchmarks.libraries import CALLEE

if TYPE_CHECKING:
    from benchmarks.libraries import Library

HOPS = 20
LONG_GRAPH = 10_000
MLP_WIDTH = 576  # three layers of 576 × 576 and their biases: 997,056 parameters
SHARED_CALLS = 100


def double(tensor: Tensor) -> Tensor:
    return tensor * 2


def long_graph(tensor: Tensor) -> Tensor:
    for _ in range(LONG_GRAPH):
        tensor = tensor * 1.0001
    return tensor


@functools.cache
def mlp() -> nn.Sequential:
    """Lives on the callee, like its parameters."""
    layers = [nn.Linear(MLP_WIDTH, MLP_WIDTH) for _ in range(3)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def run_mlp(batch: Tensor) -> Tensor:
    result: Tensor = mlp()(batch)
    return result


def weight() -> Tensor:
    return torch.rand(4, requires_grad=True)


def one_call(library: Library) -> Sample:
    leaf = weight()
    return timed_backward(
        library, lambda: library.rpc.rpc_sync(CALLEE, double, args=(leaf * 3,)).sum()
    )


def chain_of_hops(library: Library, hops: int = HOPS) -> Sample:
    leaf = weight()

    def forward() -> Tensor:
        h = leaf * 3
        for _ in range(hops):
            h = library.rpc.rpc_sync(CALLEE, double, args=(h,))
        return h.sum()

    return timed_backward(library, forward)


def long_graph_on_the_callee(library: Library) -> Sample:
    leaf = weight()
    return timed_backward(
        library, lambda: library.rpc.rpc_sync(CALLEE, long_graph, args=(leaf * 3,)).sum()
    )


def mlp_on_the_callee(library: Library) -> Sample:
    batch = torch.rand(32, MLP_WIDTH, requires_grad=True)
    return timed_backward(
        library, lambda: library.rpc.rpc_sync(CALLEE, run_mlp, args=(batch,)).sum()
    )


def used_here_and_there(library: Library) -> Sample:
    leaf = weight()

    def forward() -> Tensor:
        h = (leaf * 3).tanh()
        return torch.add(h.sin(), library.rpc.rpc_sync(CALLEE, double, args=(h,))).sum()

    return timed_backward(library, forward)


def sent_but_unused(library: Library) -> Sample:
    leaf = weight()

    def forward() -> Tensor:
        h = (leaf * 3).tanh()
        library.rpc.rpc_sync(CALLEE, double, args=(h,))
        return h.sin().sum()

    return timed_backward(library, forward)


def calls_that_share(library: Library) -> Sample:
    leaf = weight()

    def forward() -> Tensor:
        h = (leaf * 3).tanh()
        calls = [library.rpc.rpc_async(CALLEE, double, args=(h,)) for _ in range(SHARED_CALLS)]
        return torch.stack(torch.futures.wait_all(calls)).sum()

    return timed_backward(library, forward)


# ---------------------------------------------------------------- the same graphs in one process


def one_call_in_one_process(_library: None) -> Sample:
    leaf = weight()
    return timed_local_backward(lambda: double(leaf * 3).sum())


def chain_in_one_process(_library: None) -> Sample:
    leaf = weight()

    def forward() -> Tensor:
        h = leaf * 3
        for _ in range(HOPS):
            h = double(h)
        return h.sum()

    return timed_local_backward(forward)


def long_graph_in_one_process(_library: None) -> Sample:
    leaf = weight()
    return timed_local_backward(lambda: long_graph(leaf * 3).sum())


def mlp_in_one_process(_library: None) -> Sample:
    """With gradients that are new each time, as each context has its own."""
    batch = torch.rand(32, MLP_WIDTH, requires_grad=True)

    def forward() -> Tensor:
        mlp().zero_grad()
        return run_mlp(batch).sum()

    return timed_local_backward(forward)


def used_twice_in_one_process(_library: None) -> Sample:
    leaf = weight()

    def forward() -> Tensor:
        h = (leaf * 3).tanh()
        return torch.add(h.sin(), double(h)).sum()

    return timed_local_backward(forward)


def sharing_in_one_process(_library: None) -> Sample:
    leaf = weight()

    def forward() -> Tensor:
        h = (leaf * 3).tanh()
        return torch.stack([double(h) for _ in range(SHARED_CALLS)]).sum()

    return timed_local_backward(forward)


def unused_in_one_process(_library: None) -> Sample:
    leaf = weight()
    return timed_local_backward(lambda: (leaf * 3).tanh().sin().sum())
