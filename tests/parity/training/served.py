"""What workers do for the trainer of a random training program."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from lockstitch import autograd, rpc
from tests.parity.held_contexts import HeldContexts
from tests.parity.training import parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def apply(reference: Any, function: Callable[..., Any], *args: Any) -> Any:
    return function(reference.local_value(), *args)


def share(reference: Any, other: Any) -> None:
    parts.take_weight(reference.local_value(), other.local_value())


def forward_there(reference: Any, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Calls a part that is on a third worker, maybe."""
    return reference.rpc_sync().__call__(x, ids)


def weight_of(reference: Any) -> torch.Tensor:
    return reference.local_value().weight


def produce(reference: Any, x: torch.Tensor, ids: torch.Tensor) -> Iterator[torch.Tensor]:
    yield reference.local_value()(x, ids)


def step_there(optimizer: Any, *context: Any) -> None:
    optimizer.step(*context)


def greet() -> None:
    """Nothing, but who is called within a context may step by it."""


class Guest:
    """Trains the same parts from another worker, in contexts of its own."""

    def __init__(self) -> None:
        self.held = HeldContexts()

    def train(self, *args: Any) -> tuple[float, int]:
        """One pass in a new context; the loss, and the context, which stays open."""
        loss = self.held.run(self._train, *args)
        return loss, self.held.ids[-1]

    def leave(self) -> None:
        """All contexts end."""
        self.held.__exit__()

    def _train(  # noqa: PLR0917
        self,
        context_id: int,
        layers: list[Any],
        x: torch.Tensor,
        ids: torch.Tensor,
        factor: float,
        scale: float,
        casts: bool,
    ) -> float:
        rpc.rpc_sync("trainer", greet)
        with contextlib.ExitStack() as modes:
            if casts:
                modes.enter_context(rpc.carry_modes())
                modes.enter_context(torch.autocast("cpu", torch.bfloat16))
            for layer in layers:
                x = layer.rpc_sync().__call__(x, ids)
        loss = x.square().mean() * factor
        autograd.backward(context_id, [loss * scale])
        return loss.item()
