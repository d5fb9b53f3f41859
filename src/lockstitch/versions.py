"""Which torch Lockstitch stands on: from the oldest that it is tested with to the newest.

It is asked when the first part of Lockstitch that needs torch is imported. A torch that is too old
is refused. One that nobody knows yet is welcome, with a warning that says which of its private
names have gone, and what is off because of that; all else goes on.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TORCH: Final = ((2, 10), (2, 16))
"""The oldest torch that is supported, and the first that is not."""
RANGE: Final = "2.10 to 2.15"
REQUIREMENT: Final = "torch>=2.10,<2.16"
"""The same for people, and as pip is told."""


def parse(version: str) -> tuple[int, int] | None:
    """Major and minor number of `torch.__version__`; None if it is none ("master", say)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def is_tested(version: str) -> bool:
    """Whether it lies in the range."""
    known = parse(version)
    return known is not None and TORCH[0] <= known < TORCH[1]


def refuse_old(version: str) -> None:
    """Raises `ImportError` for a torch from before the range."""
    known = parse(version)
    if known is not None and known < TORCH[0]:
        raise ImportError(
            f"Lockstitch needs torch {RANGE}, and this is torch {version}. Install another: "
            f"pip install '{REQUIREMENT}'"
        )


def tell_of_unknown(version: str, missing: Callable[[], Iterable[tuple[str, str]]] = tuple) -> None:
    """Warns of a torch from after the range. `missing` looks for private names that it lacks: each
    with what is off because of that."""
    if is_tested(version):
        return
    lacks = "".join(f". It lacks {name}: {consequence}" for name, consequence in missing())
    warnings.warn(
        f"Lockstitch is not tested with torch {version}, only with {RANGE}{lacks}. "
        f"{'All else' if lacks else 'It'} goes on; if something is wrong, pip install "
        f"'{REQUIREMENT}'",
        stacklevel=2,
    )
