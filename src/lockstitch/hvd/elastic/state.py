"""`TorchState`: models, optimizers, samplers and plain values, kept together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.hvd.basics import rank
from lockstitch.hvd.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    SchedulerStateHandler,
    StateHandler,
    get_handler_registry,
    handler_of,
    set_handler_registry,
)
from lockstitch.hvd.elastic.objects import ObjectState
from lockstitch.hvd.functions import broadcast_object

if TYPE_CHECKING:
    import torch

__all__ = [
    "TorchState",
    "StateHandler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "SchedulerStateHandler",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """`TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)`: each is an attribute.

    Modules, optimizers, schedulers of learning rates and elastic samplers are kept by what they
    consist of, everything else as a copy. In a new world all get what rank 0 has; samplers, what no
    rank has processed.
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.update(model=model, optimizer=optimizer)
        found = {name: handler_of(value) for name, value in kwargs.items()}
        handlers = {name: handler for name, handler in found.items() if handler is not None}
        object.__setattr__(self, "_handlers", handlers)
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        plain = {name: value for name, value in kwargs.items() if name not in handlers}
        super().__init__(broadcast_object, rank, **plain)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        """Keeps everything as it is now."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Goes back to what was kept last."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks what rank 0 has, and keeps it."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
