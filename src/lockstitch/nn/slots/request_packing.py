"""Requests on their way to a forked slot: as few bytes and objects as possible, for they are made
and read once for each step.

The modes of the caller hardly ever change: they are pickled once, and unpickled once. Most calls
have one argument, a tensor: their skeleton is left out.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from lockstitch.nn.slots.base import NO_CHANGES, Changes, Request
from lockstitch.nn.slots.lifting import SINGLE_ARGUMENT, is_single_argument

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lockstitch.modes import Modes

_MOST_MODES = 100


class Packer:
    """Packs the requests to one slot."""

    def __init__(self) -> None:
        self._packed: bytes = b""
        self._modes: tuple[Modes, torch.dtype] | None = None

    def pack(self, request: Request) -> tuple[Any, Sequence[torch.Tensor | None]]:
        """What is to be pickled of a request, and the tensors that go beside it."""
        modes = request.modes, request.default_dtype
        before = self._modes
        if before is None or modes[0] is not before[0] or modes[1] is not before[1]:
            self._packed, self._modes = pickle.dumps(modes, 5), modes
        changes = request.changes
        changed = None
        tensors: Sequence[torch.Tensor | None] = request.tensors
        if changes:
            changed = changes.attributes, [i for i, _ in changes.others]
            tensors = [*tensors, *(tensor for _, tensor in changes.others)]
        skeleton = None if is_single_argument(request.skeleton) else request.skeleton
        vjp_of = request.vjp_of
        content = skeleton, request.wants_gradient, self._packed, request.seed, changed, vjp_of
        return content, tensors


class Unpacker:
    """Makes requests of what a `Packer` has packed."""

    def __init__(self) -> None:
        self._modes: dict[bytes, tuple[Modes, torch.dtype]] = {}

    def unpack(self, number: int, content: Any, tensors: Sequence[Any]) -> Request:
        """The request of this number. Buffers and the like become the slot's own."""
        skeleton, wants_gradient, packed, seed, changed, vjp_of = content
        if skeleton is None:
            skeleton = SINGLE_ARGUMENT
        modes = self._modes.get(packed)
        if modes is None:
            if len(self._modes) >= _MOST_MODES:
                self._modes.clear()
            modes = self._modes[packed] = pickle.loads(packed)
        changes = NO_CHANGES
        if changed is not None:
            attributes, others = changed
            count = len(tensors) - len(others)
            pairs = [
                (i, None if tensor is None else tensor.clone())
                for i, tensor in zip(others, tensors[count:], strict=True)
            ]
            changes = Changes(attributes, pairs)
            tensors = tensors[:count]
        caller, dtype = modes
        return Request(
            number,
            skeleton,
            tensors,
            wants_gradient,
            caller,
            dtype,
            seed,
            changes=changes,
            vjp_of=vjp_of,
        )
