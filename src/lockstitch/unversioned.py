"""Writes to tensors of which their versions do not tell, since they shall not: what collectives and
messages of the c10d backend bring is written beside autograd (`lockstitch.c10d.outputs`). Who keeps
copies of tensors asks here, too, whether the originals have been written to.

It is known of memory, not of tensors: who writes into `parameter.data` writes the parameter.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from lockstitch.torch_internals.tensors import versions_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import torch

_NUMBER: Final = "_lockstitch_written"


class UnversionedWrites:
    """Those in one process. Costs nothing until somebody asks."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._is_asked = False
        self._is_anything_noted = False

    def note(self, tensors: Iterable[torch.Tensor]) -> None:
        """Called after these have been written to; those that have no memory are left out."""
        if not self._is_asked:
            return
        number = next(self._numbers)
        for tensor in tensors:
            storage = _storage_of(tensor)
            if storage is not None:
                setattr(storage, _NUMBER, number)
                self._is_anything_noted = True

    def number_of(self, tensor: torch.Tensor) -> int:
        """The number of the last write into the memory of a tensor, counted over all; 0 where there
        was none since somebody asked for the first time."""
        self._is_asked = True
        return getattr(_storage_of(tensor), _NUMBER, 0) if self._is_anything_noted else 0

    def state_of(self, tensor: torch.Tensor) -> Any:
        """`states_of` for one."""
        return self.states_of([tensor])[0]

    def states_of(self, tensors: Collection[torch.Tensor]) -> list[Any]:
        """For each of some tensors a value that is another one after it has been written to, be it
        in this way or as torch counts."""
        self._is_asked = True
        states: list[Any] = versions_of(tensors)
        for place, tensor in enumerate(tensors if self._is_anything_noted else ()):
            number = self.number_of(tensor)
            if number:
                states[place] = (states[place], number)
        return states


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except RuntimeError:  # it is sparse, nested or of a subclass that has none
        return None


UNVERSIONED: Final = UnversionedWrites()
