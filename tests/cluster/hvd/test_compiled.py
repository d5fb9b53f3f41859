"""Reductions inside functions and modules that torch compiles, and around them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch import hvd
from lockstitch.hvd.job import active
from tests.cluster.collectives.ranks import Ranks

# What torch warns of where a compiled function is cut behind any tensor with a history, and where
# the step of its own optimizers is compiled.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),
]

BACKENDS = ["eager", "aot_eager"]

OPERATIONS = {
    "allreduce": lambda x: hvd.allreduce(x * 2, op=hvd.Sum) + 1,
    "narrowed": lambda x: hvd.allreduce(x * 2, compression=hvd.Compression.fp16) + 1,
    "in place": lambda x: hvd.allreduce_((x * 2).detach(), op=hvd.Sum) + x,
    "later": lambda x: hvd.synchronize(hvd.allreduce_async(x.detach() * 2)) + x,
    "group": lambda x: sum(hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)),
    "broadcast": lambda x: hvd.broadcast(x * 2, 0) + 1,
    "allgather": lambda x: hvd.allgather(x * 2) + 1,
    "alltoall": lambda x: hvd.alltoall(x * 2, [2, 2])[0] + hvd.alltoall(x) + 1,
    "reducescatter": lambda x: hvd.reducescatter(x * 2) + 1,
    "questions": lambda x: x * (hvd.rank() + 1) + hvd.size() + hvd.broadcast_object(3, 0),
}


def on_two(program):
    def run(session):
        with active(session):
            return program()

    try:
        with Ranks(2, "shared_memory") as ranks:
            return ranks.run(run)
    finally:
        torch.compiler.reset()


def check(function, backend):
    def program():
        results = []
        for each in (function, torch.compile(function, backend=backend)):
            for _ in range(2):
                x = torch.arange(8.0).view(4, 2).requires_grad_()
                y = each(x)
                y.sum().backward()
                results.append((y.detach(), x.grad))
        return results

    for expected, *found in on_two(program):
        for each in found:
            torch.testing.assert_close(each, expected)


def test_a_reduction_in_a_compiled_function():
    check(OPERATIONS["allreduce"], "eager")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_compiled_gives_what_it_gives_otherwise(name, backend):
    check(OPERATIONS[name], backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["module", "step"])
def test_compiled_training_comes_to_the_same_parameters(what, backend):
    def train(compile_it):
        start, mine = (torch.Generator().manual_seed(seed) for seed in (3, hvd.rank()))
        model = nn.Sequential(nn.Linear(4, 6), hvd.SyncBatchNorm(6), nn.ReLU(), nn.Linear(6, 2))
        with torch.no_grad():
            for each in model.parameters():
                each.copy_(torch.randn(each.shape, generator=start))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        x = torch.randn(5, 4, generator=mine)
        forward = compile_it(model) if what == "module" else model

        def step(x):
            optimizer.zero_grad()
            forward(x).square().mean().backward()
            optimizer.step()

        step = compile_it(step) if what == "step" else step
        for _ in range(3):
            step(x)
        return [each.detach().clone() for each in model.state_dict().values()]

    def program():
        return train(lambda each: each), train(lambda each: torch.compile(each, backend=backend))

    for expected, found in on_two(program):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("function", [OPERATIONS["allreduce"], OPERATIONS["in place"]])
def test_what_must_not_be_cut_is_an_error_of_torch_that_names_the_operation(function):
    def program():
        with pytest.raises(Exception, match="allreduce") as caught:
            torch.compile(function, backend="eager", fullgraph=True)(torch.ones(4, 2))
        return type(caught.value).__name__

    assert on_two(program) == ["Unsupported"] * 2
