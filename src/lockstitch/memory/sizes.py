"""How sizes are rounded: those of blocks, so that one that comes back suits the next; what lies one
behind the other; and pages."""

from __future__ import annotations

import mmap
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
ALIGNMENT: Final = 64
"""The alignment, in bytes, of tensors that lie one behind the other."""
# Sizes of blocks rise in eighths of a power of two, which wastes 6 % on average.
_STEPS_LOG2: Final = 3
# A block may be lent for much less than it holds, but not for less than this part of it.
_LEAST_PART: Final = 4


def aligned(nbytes: int, step: int = ALIGNMENT) -> int:
    """The next multiple of `step`."""
    return -(-nbytes // step) * step


def rounded(nbytes: int, least_step: int = PAGE_BYTES) -> int:
    """The size of a block for `nbytes`, a multiple of `least_step` (a power of two)."""
    step = max(least_step, 1 << max((nbytes - 1).bit_length() - 1 - _STEPS_LOG2, 0))
    return -(-nbytes // step) * step


def fits(size: int, nbytes: int) -> bool:
    """Whether a block of that size holds `nbytes`, and is not much too large for that."""
    return nbytes <= size <= max(nbytes, PAGE_BYTES) * _LEAST_PART
