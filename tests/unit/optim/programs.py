"""What lives on the workers of these tests."""

from __future__ import annotations

import torch
from torch import optim


class Layer:
    """Multiplies by a weight that is the same for every instance."""

    def __init__(self, requires_grad: bool = True) -> None:
        weight = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
        self.weight = torch.nn.Parameter(weight, requires_grad=requires_grad)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.mm(self.weight, batch)

    def get_weight(self) -> torch.Tensor:
        return self.weight


class FailingOptimizer(optim.Optimizer):
    def __init__(self, params) -> None:
        super().__init__(params, {})

    def step(self, closure=None) -> None:
        raise ValueError("no step today")


class RefusingOptimizer(optim.Optimizer):
    def __init__(self, params) -> None:
        raise ValueError("no optimizer today")
