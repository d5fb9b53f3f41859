"""What is private to torch of optimizers: how schedulers see a step, and the hooks on states."""

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

_HOOKS = "_optimizer_{}_hooks"


def _state_hooks(optimizer: torch.optim.Optimizer, kind: str) -> list[Callable[..., Any]]:
    """The hooks that were registered with an optimizer: "state_dict_pre", "state_dict_post",
    "load_state_dict_pre" or "load_state_dict_post"."""
    return list(getattr(optimizer, _HOOKS.format(kind)).values())


def _lists_hooks(hooks_of: Callable[[torch.optim.Optimizer, str], Any]) -> bool:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    found = []
    for kind in (
        "state_dict_pre",
        "state_dict_post",
        "load_state_dict_pre",
        "load_state_dict_post",
    ):
        hook = lambda *_: None  # noqa: E731
        getattr(optimizer, f"register_{kind}_hook")(hook)
        found.append(hooks_of(optimizer, kind) == [hook])
    return all(found)


_hooks = Names("hooks on states of DistributedOptimizer", within=plain_modes)
state_hooks: Callable[[torch.optim.Optimizer, str], list[Callable[..., Any]]] = _hooks.take(
    "Optimizer._optimizer_state_dict_pre_hooks, _optimizer_state_dict_post_hooks, "
    "_optimizer_load_state_dict_pre_hooks, _optimizer_load_state_dict_post_hooks",
    "be the tables of the hooks on states",
    _lists_hooks,
    reader=_state_hooks,
    cost=Cost.SLOW,
)
PRIVATES = (*_names.finish(), *_hooks.finish())
