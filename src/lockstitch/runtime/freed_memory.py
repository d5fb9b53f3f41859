"""Keeping what torch frees, so that the next gradients need no fresh pages.

A gradient of a megabyte is made and freed in every step. By default glibc hands such memory back
to the system, and each of its pages is fetched and cleared again in the next step, which takes
longer than to fill it (a pass over three layers of 576 × 576: 450 page faults, a fifth of its
time). The threads that serve others are hit hardest, since each has an arena of its own.

glibc learns: once a process has freed a large block, it takes blocks up to that size for something
that comes and goes, serves them from the arenas, and lets each of those keep twice as much. So it
is shown such a block at the start. Nothing is taken from users who have set its thresholds
themselves (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`): then it learns nothing. Other
allocators do not notice.

Source: *Dynamic mmap threshold* in glibc's malloc/malloc.c.
"""

from __future__ import annotations

from typing import Final

import torch

KEPT_BLOCK_BYTES: Final = 8 << 20
"""Blocks up to this size are kept; an arena keeps twice as much at its end."""

MOST_KEPT_BLOCK_BYTES: Final = 31 << 20
"""What glibc can just be shown: a block of 32 MiB and its header are too large to learn from."""


def keep_freed_memory(nbytes: int = KEPT_BLOCK_BYTES) -> None:
    """Has glibc keep freed blocks of up to `nbytes` (less than 32 MiB) for the rest of the process;
    harmless when repeated. The block that it is shown is never touched, so it takes no memory."""
    torch.empty(nbytes, dtype=torch.uint8, device="cpu")
