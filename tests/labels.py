"""Names of test cases that are the same in every process: those that run the tests side by side,
and the one that tries again what failed, know a test by its name only."""

from __future__ import annotations

import re


def steady(value: object) -> str:
    """What `value` says of itself, but for where in memory it lies."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
