"""Which tensors of a worker have been written to in such a way that their versions do not tell.

A tensor's version counts what is written through the tensor itself, but two kinds of optimizers'
steps are not counted: one that steps while backward passes are in flight writes through an alias,
of which it is the point that no graph hears of it (`lockstitch.optim.local`); and torch's fused
optimizers leave versions as they are. Nor is what the c10d backend writes
(`lockstitch.unversioned`). Whoever keeps copies equal to tensors must hear of all of them.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from torch.optim import optimizer as theirs

from lockstitch.unversioned import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch

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
        self._lock = threading.Lock()
        self._fused_steps: WeakKeyDictionary[torch.optim.Optimizer, int] | None = None
        """Of each fused optimizer the number of its latest step; None while nobody asks."""

    @classmethod
    def of(cls, worker: Worker) -> HiddenWrites:
        """Returns that of this worker."""
        return worker.obtain(cls, lambda: cls(worker))

    def add(self, writer: Writer) -> None:
        """From now on this one writes, too, as long as it lives."""
        with self._lock:
            self._writers[writer] = next(self._numbers)

    def states_of(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """For each of some tensors a value that is another one after it has been written to; the
        same one, else, but for those that a step of a fused optimizer has left alone."""
        if self._fused_steps is None:
            self._fused_steps = WeakKeyDictionary()
            watch = theirs.register_optimizer_step_post_hook(self._note)
            self._worker.agent.on_close(watch.remove)
        with self._lock:
            writers, fused = [*self._writers.items()], [*self._fused_steps.items()]
        states = _own_states(tensors, fused)
        for writer, number in writers:
            aliases = {
                n: each for n, each in enumerate(map(writer.alias_of, tensors)) if each is not None
            }
            for place, state in zip(aliases, _own_states(aliases.values(), fused), strict=True):
                states[place] = (states[place], number, state)
        return states

    def _note(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """An optimizer of this process has stepped."""
        is_fused = any(group.get("fused") for group in optimizer.param_groups)
        with self._lock:
            if is_fused and self._fused_steps is not None:
                self._fused_steps[optimizer] = next(self._numbers)


def _own_states(
    tensors: Collection[torch.Tensor], fused_steps: Sequence[tuple[torch.optim.Optimizer, int]]
) -> list[Any]:
    """`HiddenWrites.states_of`, of what is written through these themselves."""
    states = UNVERSIONED.states_of(tensors)
    for optimizer, step in fused_steps:
        groups = [group["params"] for group in optimizer.param_groups if group.get("fused")]
        stepped = set(map(id, itertools.chain(*groups)))
        for place, each in enumerate(tensors):
            if id(each) in stepped:
                states[place] = (states[place], step)
    return states
