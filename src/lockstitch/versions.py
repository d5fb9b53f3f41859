"""Which torch Lockstitch stands on: from the oldest that it is tested with to the newest.

It is asked when the first part of Lockstitch that needs torch is imported. A torch that is too old
is refused. One that nobody knows yet is welcome, with a warning, and one more for each of its
private names that has gone, which says what is off because of that; all else goes on.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

TORCH: Final = ((2, 10), (2, 16))
"""The oldest torch that is supported, and the first that is not."""
RANGE: Final = "2.10 to 2.15"
REQUIREMENT: Final = "torch>=2.10,<2.16"
"""The same for people, and as pip is told."""


def parse(version: str) -> tuple[int, int] | None:
    """Major and minor number of `torch.__version__`; None if it is none ("master", say)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def are_alike(one: str, other: str) -> bool:
    """Whether two versions, of whatever package, agree in their first two numbers."""
    return one.split(".")[:2] == other.split(".")[:2]


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


def tell_of_unknown(version: str) -> None:
    """Warns of a torch from after the range."""
    if is_tested(version):
        return
    warnings.warn(
        f"Lockstitch is not tested with torch {version}, only with {RANGE}. It goes on; if "
        f"something is wrong, pip install '{REQUIREMENT}'",
        stacklevel=2,
    )


def tell_of_missing(version: str, missing: Iterable[tuple[object, str]]) -> None:
    """Warns of private names that a torch from after the range lacks: what is wrong with each, and
    what that means."""
    if is_tested(version):
        return
    for fault, consequence in missing:
        warnings.warn(
            f"torch {version}, with which Lockstitch is not tested: {fault} ({consequence}). All "
            "else goes on",
            stacklevel=3,
        )
