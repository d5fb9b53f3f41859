"""What comes of a random training program, and the options of its optimizers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Outcome:
    """What is compared."""

    losses: list[float] = field(default_factory=list)
    norms: list[torch.Tensor] = field(default_factory=list)
    options: list[Any] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    looks: list[torch.Tensor] = field(default_factory=list)
    events: list[list[str]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    values: list[list[torch.Tensor]] = field(default_factory=list)
    averages: list[list[torch.Tensor]] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    error: str = ""


def options_of(optimizer: Any) -> list[dict[str, Any]]:
    """The options of all groups, as one sees them."""
    return [
        {
            key: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


def assign(optimizer: Any, change: Any) -> None:
    """Sets an option of a group, see `Assignment`."""
    groups = optimizer.param_groups
    group = groups[change.group % len(groups)]
    value = group.get(change.key)
    if change.key == "note":
        group["note"] = change.factor
    elif isinstance(value, torch.Tensor):
        value.mul_(change.factor)
    elif isinstance(value, bool):
        group[change.key] = not value
    elif value is not None:
        group[change.key] = value * change.factor or 0.1
