"""`DataParallel` of compiled modules, and compiled `DataParallel`."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("slots", [["thread", "thread"], ["fork", "fork"], ["thread"]])
@pytest.mark.parametrize("is_compiled_inside", [True, False])
def test_gradients_are_those_of_the_module_itself(backend, slots, is_compiled_inside):
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    alone, x = copy.deepcopy(module), torch.randn(6, 4)
    try:
        if is_compiled_inside:
            parallel = DataParallel(torch.compile(module, backend=backend), slots)
        else:
            parallel = torch.compile(DataParallel(module, slots), backend=backend)
        for _ in range(2):
            module.zero_grad()
            y = parallel(x)
            y.sum().backward()
    finally:
        torch.compiler.reset()
    expected = alone(x)
    expected.sum().backward()
    torch.testing.assert_close(y, expected)
    for found, wanted in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)
