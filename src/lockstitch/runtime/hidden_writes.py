"""Which tensors of a worker have been written to in such a way that their versions do not tell.

A tensor's version counts what is written through the tensor itself, but two kinds of optimizers'
steps are not counted: one that steps while backward passes are in flight writes through an alias,
of which it is the point that no graph hears of it (`lockstitch.optim.local`); and torch's fused
optimizers leave versions as they are. Whoever keeps copies equal to tensors must hear of both.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch.optim import optimizer as theirs
from torch.utils.weak import WeakTensorKeyDictionary

from lockstitch.torch_internals.tensors import version_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from lockstitch.runtime.worker import Worker


class Writer(Protocol):
    """Who writes through aliases."""

    def alias_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Through which it writes to a tensor; None where it does not."""
        ...


class HiddenWrites:
    """What is written on a worker in these ways."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._writers: WeakKeyDictionary[Writer, int] = WeakKeyDictionary()
        self._numbers = itertools.count()
        self._fused_steps: MutableMapping[torch.Tensor, int] | None = None
        """How often each tensor was stepped by a fused optimizer; None while nobody asks."""

    @classmethod
    def of(cls, worker: Worker) -> HiddenWrites:
        """Returns that of this worker."""
        return worker.obtain(cls, lambda: cls(worker))

    def add(self, writer: Writer) -> None:
        """From now on this one writes, too, as long as it lives."""
        self._writers[writer] = next(self._numbers)

    def states_of(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """For each of some tensors a value that is another one after it has been written to; the
        same one, else."""
        if self._fused_steps is None:
            self._fused_steps = WeakTensorKeyDictionary()
            watch = theirs.register_optimizer_step_post_hook(self._note)
            self._worker.agent.on_close(watch.remove)
        writers = [*self._writers.items()]
        states: list[Any] = [self._state_of(each) for each in tensors]
        for writer, number in writers:
            for place, alias in enumerate(map(writer.alias_of, tensors)):
                if alias is not None:
                    states[place] = (states[place], number, self._state_of(alias))
        return states

    def _state_of(self, tensor: torch.Tensor) -> tuple[int, int]:
        steps = self._fused_steps
        return version_of(tensor), 0 if steps is None else steps.get(tensor, 0)

    def _note(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """An optimizer of this process has stepped."""
        steps = self._fused_steps
        if steps is None:
            return
        for group in optimizer.param_groups:
            for each in group["params"] if group.get("fused") else ():
                # Those of a distributed optimizer are references; who owns them steps them.
                if isinstance(each, torch.Tensor) and each.grad is not None:
                    steps[each] = steps.get(each, 0) + 1
