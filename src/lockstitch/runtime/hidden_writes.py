"""Which tensors of a worker have been written to in such a way that their versions do not tell.

A tensor's version counts what is written through the tensor itself. An optimizer that steps while
backward passes are in flight writes through an alias, of which it is the point that no graph hears
of it (`lockstitch.optim.local`). Whoever keeps copies equal to tensors must hear of it all the same.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from lockstitch.torch_internals.tensors import versions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lockstitch.runtime.worker import Worker


class Writer(Protocol):
    """Who writes so."""

    def writes_to(self, tensors: Sequence[torch.Tensor]) -> Sequence[int]:
        """For each of some tensors how often it has been written to."""
        ...


class HiddenWrites:
    """The writers of a worker, as long as they live."""

    def __init__(self) -> None:
        self._writers: WeakKeyDictionary[Writer, int] = WeakKeyDictionary()
        self._numbers = itertools.count()

    @classmethod
    def of(cls, worker: Worker) -> HiddenWrites:
        """Returns those of this worker."""
        return worker.obtain(cls, cls)

    def add(self, writer: Writer) -> None:
        """From now on this one writes, too."""
        self._writers[writer] = next(self._numbers)

    def states_of(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """For each of some tensors a value that is another one after it has been written to, in
        whichever way; the same one, else."""
        states: list[Any] = versions_of(tensors)
        for writer, number in [*self._writers.items()]:
            for place, count in enumerate(writer.writes_to(tensors)):
                if count:
                    states[place] = (states[place], number, count)
        return states
