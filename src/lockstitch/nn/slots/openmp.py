"""The threads of OpenMP that have nothing to do.

After an operation on several cores the workers of OpenMP look for the next one for milliseconds
before they fall asleep. Meanwhile the cores that slots are about to use look busy, and the system
puts two slots on one. So they are ended first; the next operation on several cores makes new ones,
which takes a tenth of a millisecond. Measured, two slots on two cores: a step of a small
convolutional network takes 5.8 ms instead of 9.3.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_SOFT: Final = 1  # omp_pause_soft: what the program has set is kept


def _find() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the OpenMP that torch works with, if it has it (version 5.0)."""
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("libgomp*.so*")):
        function = getattr(ctypes.CDLL(str(path)), "omp_pause_resource_all", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    return None


_PAUSE: Final = _find()


def end_idle_threads() -> None:
    """Ends those that work for this thread; no operation may be under way in it. 1 µs if there are
    none."""
    if _PAUSE is not None:
        _PAUSE(_SOFT)
