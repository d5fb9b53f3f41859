"""Amounts of cores and of memory, as Kubernetes writes them: `500m`, `2`, `8Gi`.

Kubernetes takes any suffix for either. Here each has those that make sense for it, so that a slip
(`500m` of memory is half a byte) is refused where it is made, not by a cluster later.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_CORES: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(m?)")
_MEMORY: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([KMGTPE]i|[kMGTPE]|[eE]\d{1,2})?")
_POWERS: Final = {letter: power for power, letter in enumerate("KMGTPE", 1)}
_LEAST_BYTES: Final = 128 << 20
_MOST_BYTES: Final = (1 << 63) - 1


def cores(text: str) -> Decimal:
    """Returns the number of cores that `text` stands for. Raises `ValueError` where it is none, or
    none that Kubernetes can give."""
    match = _CORES.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no number of cores: write 2, 0.5 or 500m")
    number = Decimal(match[1]) / (1000 if match[2] else 1)
    if number == 0 or number * 1000 % 1:
        raise ValueError(f"{text!r} cores cannot be given: the smallest part of a core is 1m")
    return number


def memory_bytes(text: str) -> int:
    """Returns the number of bytes that `text` stands for. Raises `ValueError` where it is none, or
    none in which a worker could run."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no amount of memory: write 8Gi (or 8G), 512Mi or bytes")
    number = int(Decimal(match[1]) * _factor(match[2] or ""))
    if number < _LEAST_BYTES:
        advice = f" Do you mean {text}Gi?" if text.isdecimal() and number < 1 << 20 else ""
        raise ValueError(
            f"{text!r} is {number:,} bytes: too little even to import torch, which takes some "
            f"hundred megabytes.{advice}"
        )
    if number > _MOST_BYTES:
        raise ValueError(f"{text!r} is more than Kubernetes can count: at most 2**63 - 1 bytes")
    return number


def _factor(suffix: str) -> int:
    if suffix[1:].isdecimal():  # an exponent
        base, power = 10, int(suffix[1:])
    elif suffix:
        base, power = 1024 if suffix[1:] else 1000, _POWERS[suffix[0].upper()]
    else:
        return 1
    factor: int = base**power
    return factor
