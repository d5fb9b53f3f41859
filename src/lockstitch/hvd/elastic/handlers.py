"""How models, optimizers, schedulers and samplers are kept, each by a handler of its own.

The registry says which handler is for which type; programs may add their own:

    set_handler_registry([(MyScheduler, MyHandler), *get_handler_registry()])
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from lockstitch.hvd.elastic.sampler import ElasticSampler
from lockstitch.hvd.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class StateHandler:
    """Keeps one value of a state. A handler of your own defines `save`, `restore` and `sync`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps the value as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes the value equal on all ranks and keeps it."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Another value takes the place; it is kept as it is."""
        self.value = value
        self.save()


class _WithStateDict(StateHandler):
    """Handler of values that have `state_dict` and `load_state_dict`."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy, since optimizers go on with the very tensors that they are given.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_WithStateDict):
    """Handler of modules: all ranks get the parameters and buffers of rank 0."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_WithStateDict):
    """Handler of optimizers: all ranks get the state and options of rank 0."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SchedulerStateHandler(_WithStateDict):
    """Handler of schedulers of learning rates: all ranks get the state of rank 0. A copy would
    schedule a copy of the optimizer."""

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root_rank=0))
        self.save()


class SamplerStateHandler(_WithStateDict):
    """Handler of elastic samplers: what any rank has processed is processed, in the epoch of rank
    0."""

    def sync(self) -> None:
        states = allgather_object(self.value.state_dict(), name="elastic.sampler")
        epoch = states[0]["epoch"]
        done = [state["processed_indices"] for state in states if state["epoch"] == epoch]
        self.value.load_state_dict({"epoch": epoch, "processed_indices": set().union(*done)})
        self.save()


class _Registry:
    """The handlers by type; the first whose type fits is taken."""

    def __init__(self) -> None:
        self.entries: list[tuple[type, type[StateHandler]]] = [
            (ElasticSampler, SamplerStateHandler),
            (torch.optim.Optimizer, OptimizerStateHandler),
            (torch.nn.Module, ModelStateHandler),
            (torch.optim.lr_scheduler.LRScheduler, SchedulerStateHandler),
        ]


_REGISTRY = _Registry()


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Pairs of a type and its handler; the first that fits is taken."""
    return list(_REGISTRY.entries)


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Takes these pairs from now on, for states that are made later."""
    _REGISTRY.entries = list(registry)


def handler_of(value: object) -> StateHandler | None:
    """A handler for the value; None where no entry of the registry fits."""
    for kind, handler in _REGISTRY.entries:
        if isinstance(value, kind):
            return handler(value)
    return None
