"""Changes in place that are made once, though Ctrl-C may end the work at any call and somebody else
begins it anew: sums into one of their own parts, and scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class Changes:
    """Of one tensor, in their order.

    An interrupt may come when torch has made a change and nobody has noted it. The tensor's version
    counter has: it must be the tensor's own, and each change must move it on, or do nothing at all.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._state = (0, tensor._version)
        """How many were made, and the version with the last of them."""

    def make(self, number: int, change: Callable[[], object]) -> None:
        """Makes the `number`-th change unless it was made; to be called for one after the other,
        from the first one on however many were made before."""
        made, version = self._state
        if number < made:
            return
        if self._tensor._version == version:
            change()
        self._state = (number + 1, self._tensor._version)
