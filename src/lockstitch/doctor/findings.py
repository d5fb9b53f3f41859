"""What a check has found, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["good", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """What one check has found. `note` is worth knowing, but nothing fails for it; `wrong` means
    that something will fail."""

    topic: str
    state: State
    says: str
    remedy: str = ""
    """What to do, where there is something to do."""


def good(topic: str, says: str) -> Finding:
    """Makes a finding of what is as it should be."""
    return Finding(topic, "good", says)


def note(topic: str, says: str, remedy: str = "") -> Finding:
    """Makes a finding that is worth knowing."""
    return Finding(topic, "note", says, remedy)


def wrong(topic: str, says: str, remedy: str) -> Finding:
    """Makes a finding for which something will fail."""
    return Finding(topic, "wrong", says, remedy)
