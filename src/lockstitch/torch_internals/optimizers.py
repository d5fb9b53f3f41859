"""What is private to torch of optimizers: how its schedulers see that a step was made."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.optim.lr_scheduler import StepLR

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.probing import Cost, Names

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def _mark_step(step: F) -> F:
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _note_step(optimizer: torch.optim.Optimizer) -> None:
    optimizer._opt_called = True  # type: ignore[attr-defined]


def _is_left_alone(mark: Callable[[Any], object]) -> bool:
    class Marked(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            """Does nothing."""

    mark(Marked.step)
    optimizer = Marked([torch.zeros(1)], lr=1.0)
    StepLR(optimizer, 1)
    return "step" not in vars(optimizer)


def _contents_schedulers(note: Callable[[torch.optim.Optimizer], object]) -> bool:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = StepLR(optimizer, 1)
    note(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            scheduler.step()
        except UserWarning:
            return False
    return True


_names = Names("schedulers over the optimizers of hvd", within=plain_modes)
mark_step: Callable[[F], F] = _names.take(
    "Optimizer.step._wrapped_by_lr_sched",
    "keep schedulers from wrapping a step that says by itself when it was made",
    _is_left_alone,
    reader=_mark_step,
    cost=Cost.SLOW,
)
note_step: Callable[[torch.optim.Optimizer], None] = _names.take(
    "Optimizer._opt_called",
    "tell a scheduler that a step was made",
    _contents_schedulers,
    reader=_note_step,
    cost=Cost.SLOW,
)
PRIVATES = _names.finish()
