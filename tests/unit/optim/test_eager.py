"""Optimizers of torch's are made and stepped without its compiler, and do what they always do."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import optim

from lockstitch.optim import eager

PROGRAM = """
import sys, threading, torch
from lockstitch.optim.local import LocalOptimizer
from torch.optim import SGD, Adam, Adagrad
from torch.optim.optimizer import register_optimizer_step_post_hook

class Own(SGD):
    def step(self, closure=None):
        return super().step(closure)

def trained(optimizer_class, make):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = make(optimizer_class, weight)
    for step in range(3):
        optimizer.step({weight: torch.tensor([1.0, 2.0, 3.0 + step])})
    optimizer.load_state_dict(optimizer.state_dict())
    assert "add_param_group" not in vars(optimizer.optim)
    assert optimizer.optim.defaults["lr"] == 0.5
    return weight

def ours(optimizer_class, weight):
    return LocalOptimizer(optimizer_class, [weight], threading.Lock(), lr=0.5)

class Theirs:
    def __init__(self, optimizer_class, weight):
        self.optim = optimizer_class([weight], lr=0.5)
    def step(self, gradients):
        for weight, weight.grad in gradients.items():
            self.optim.step()
    def state_dict(self):
        return self.optim.state_dict()
    def load_state_dict(self, state):
        self.optim.load_state_dict(state)

steps = []
register_optimizer_step_post_hook(
    lambda optimizer, *_: steps.append((type(optimizer).__name__, torch.is_grad_enabled()))
)
classes = (SGD, Adam, Adagrad)
results = [trained(each, ours) for each in classes]
assert "torch._dynamo" not in sys.modules
assert steps == [(each.__name__, True) for each in classes for _ in range(3)]
results.append(trained(Own, ours))
for each, result in zip((*classes, Own), results):
    assert torch.equal(result, trained(each, Theirs)), each
assert "torch._dynamo" in sys.modules
"""


def test_the_compiler_stays_out_and_results_are_those_of_torch() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)


def test_a_step_that_was_replaced_is_called(without_compiler: None) -> None:
    optimizer = eager.make(optim.SGD, [torch.nn.Parameter(torch.ones(2))], lr=0.1)
    called = []
    optimizer.step = lambda: called.append("this one")
    eager.step(optimizer)
    assert called == ["this one"]


def test_errors_of_the_constructor_are_torchs(without_compiler: None) -> None:
    with pytest.raises(ValueError, match="Invalid learning rate"):
        eager.make(optim.SGD, [torch.nn.Parameter(torch.ones(2))], lr=-1.0)
    with pytest.raises(TypeError, match="params"):
        eager.make(optim.SGD, ["no tensor"], lr=0.1)
