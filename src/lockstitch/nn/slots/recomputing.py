"""Whether backward passes compute parts of the forward pass again, as `torch.utils.checkpoint` has
them do.

For that the generator of random numbers is set to where it was, and back. Two threads must not do
so at once, for there is one generator: parts would be computed again with other random numbers, the
gradients would be wrong, and the program's own numbers would come again. So such passes of a slot
that is a thread are run by the caller. Whether a pass is one is looked for in the 1st, 8th, 64th …,
which the caller runs for this reason.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_SETS_GENERATOR: Final = torch.random.set_rng_state.__code__


class Recomputing:
    """Looks on at the backward passes of one slot."""

    def __init__(self) -> None:
        self.is_seen = False
        """Whether one of them has set the generator."""
        self._passes = 0

    def must_be_alone(self) -> bool:
        """Whether nobody else may compute during the next pass; counts it."""
        self._passes += 1
        power = self._passes.bit_length() - 1
        return self.is_seen or (self._passes == 1 << power and power % 3 == 0)

    def run(self, work: Callable[[], Any]) -> Any:
        """Does the work of a pass that is alone, and looks on unless somebody else does."""
        if self.is_seen or sys.getprofile() is not None:
            return work()

        def look(frame: Any, event: str, _argument: Any) -> None:
            if event == "call" and frame.f_code is _SETS_GENERATOR:
                self.is_seen = True

        sys.setprofile(look)
        try:
            return work()
        finally:
            sys.setprofile(None)
