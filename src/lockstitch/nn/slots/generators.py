"""Random numbers of the slots: the same for the same seed, and none taken from the caller.

The seed of a slot's pass follows from the state in which the caller's generator is before the call,
and from the slot's number. So `torch.manual_seed` governs all slots, and what the caller draws is
what slot 0 draws.
"""

from __future__ import annotations

import zlib

import torch

_ODD = 0x9E3779B97F4A7C15
_BITS = (1 << 63) - 1


def fingerprint() -> int:
    """A number for the state of torch's generator for the CPU; 10 µs."""
    return zlib.crc32(torch.default_generator.get_state().numpy())  # type: ignore[arg-type]


def seed_for(state: int, slot: int) -> int:
    """The seed for a pass of the slot of this number."""
    return ((state << 16 | slot) * _ODD) & _BITS
