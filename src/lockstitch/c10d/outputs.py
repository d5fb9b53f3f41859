"""Where results go, and what is given comes from. A session writes into contiguous memory; what a
program wants elsewhere is copied when the operation is done.

It reads and writes through tensors of its own in the memory of the program's, of which autograd
knows nothing. Torch's own groups write beside it, too: a program may have saved a tensor for a
backward pass, or a view of it, into which it receives before that pass; and a tensor that needs no
gradient when an operation begins may need one when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives.mappings import check_outputs
from lockstitch.collectives.operations import plain
from lockstitch.modes import in_plain_modes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.collectives import Handle


class Outputs:
    """The outputs of one operation, as they are added."""

    def __init__(self) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def are_copied(self) -> bool:
        """Whether `copy_back` has anything to do."""
        return bool(self._copies)

    def flat(self, wanted: torch.Tensor) -> torch.Tensor:
        """Returns a vector into which a session may write what is wanted in that tensor. Raises
        `ValueError` for memory that may only be read."""
        target = memory_of(wanted)
        if target.is_contiguous() and not target.is_conj() and not target.is_neg():
            return target if target.dim() == 1 else target.view(-1)
        check_outputs("this operation", [target])
        vector = torch.empty(target.numel(), dtype=target.dtype, device=target.device)
        self._copies.append((target, vector))
        return vector

    def flats(self, wanted: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """`flat` for each."""
        return [self.flat(each) for each in wanted]

    def kept(self, wanted: torch.Tensor) -> torch.Tensor:
        """`flat`, with what is in the tensor now: perhaps not all of it is written."""
        vector = self.flat(wanted)
        if self._copies:
            vector.copy_(memory_of(wanted).reshape(-1))
        return vector

    @in_plain_modes
    def copy_back(self, _handle: Handle[Any] | None = None) -> None:
        """The operation is done: copies what the program wants elsewhere; once. Not for several
        threads at a time."""
        for target, vector in self._copies:
            target.copy_(vector.view(target.shape))
        self._copies = []  # only now: who finds nothing to be copied goes on


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns another tensor in the same memory, with a version and a history of its own. Raises as
    `plain` does."""
    return plain(tensor).data


def flat_input(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's elements as a vector, without a copy where they lie so."""
    mine = memory_of(tensor)
    return mine if mine.dim() == 1 else mine.reshape(-1)


def joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns the elements of several tensors of one dtype as one vector. Raises `ValueError` for
    several dtypes."""
    vectors = [flat_input(each) for each in tensors]
    dtypes = {each.dtype for each in vectors}
    if len(dtypes) != 1:
        raise ValueError(f"the tensors of one operation must be of one dtype, not of {dtypes}")
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors)
