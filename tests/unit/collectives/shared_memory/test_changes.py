"""Changes in place, each made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lockstitch.collectives.shared_memory.changes import Changes
from tests.unit.wire.interrupts import Interrupter, interrupted, strike_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = ("lockstitch.collectives.shared_memory.changes", __name__)


def work(changes: Changes, steps: list[Callable[[], object]]) -> None:
    for number, step in enumerate(steps):
        changes.make(number, step)


def test_whatever_is_interrupted_is_made_once() -> None:
    def attempt(number: int) -> Interrupter:
        tensor = torch.ones(3)
        changes = Changes(tensor)
        steps = [
            lambda: tensor.add_(1),
            lambda: tensor.mul_(3),
            lambda: None,  # changes nothing, as often as it likes
            lambda: tensor.sub_(1),
        ]
        with interrupted(number, *MODULES) as interrupter:
            work(changes, steps)
        work(changes, steps)
        assert tensor.tolist() == [5.0] * 3, interrupter.where
        return interrupter

    assert strike_everywhere(attempt) > 10
