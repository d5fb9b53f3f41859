"""Running a random training program in both ways, and comparing what comes of them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.parity.training.here import Here
from tests.parity.training.there import There

if TYPE_CHECKING:
    from tests.parity.training.outcome import Outcome
    from tests.parity.training.program import Program

EXPECTED = (
    "Detected call of",
    "Please also save or load the state",
    "To get the last learning rate",
    "Full backward hook is firing",
    "optimizer contains a parameter group with duplicate",
    "An input array is constant",
    "The .grad attribute of a Tensor that is not a leaf",
    "Sparse invariant checks are implicitly disabled",
    "Using backward\\(\\) with create_graph=True",
)
"""Warnings of torch that such programs bring about."""


def outcomes_of(program: Program) -> tuple[Outcome, Outcome]:
    """Over workers, and in one process."""
    with warnings.catch_warnings():
        for each in EXPECTED:
            warnings.filterwarnings("ignore", each)
        with There(program) as trainer:
            ours = trainer.train()
        return ours, Here(program).train()


def assert_trains_alike(program: Program) -> None:
    """Both trainings are equal: bit for bit, but for `Program.tolerance`."""
    ours, plain = outcomes_of(program)
    assert_same(vars(ours), vars(plain), program.tolerance, repr(program))


def assert_same(ours: Any, plain: Any, tolerance: float, path: str) -> None:
    """Both are equal, numbers within a tolerance."""
    if isinstance(plain, torch.Tensor):
        torch.testing.assert_close(
            ours,
            plain,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda said: f"{path}: {said}",
        )
    elif isinstance(plain, dict):
        assert ours.keys() == plain.keys(), path
        for key, value in plain.items():
            assert_same(ours[key], value, tolerance, f"{path}.{key}")
    elif isinstance(plain, (list, tuple)):
        assert len(ours) == len(plain), path
        for index, value in enumerate(plain):
            assert_same(ours[index], value, tolerance, f"{path}[{index}]")
    elif isinstance(plain, float):
        assert ours == pytest.approx(plain, rel=tolerance, abs=tolerance, nan_ok=True), path
    else:
        assert ours == plain, path
