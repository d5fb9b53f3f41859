"""What a check has found: values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["good", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """`note`: worth knowing, and nothing fails for it. `wrong`: something will fail."""

    topic: str
    state: State
    says: str
    remedy: str = ""
    """What to do, where there is something to do."""


def good(topic: str, says: str) -> Finding:
    """As it should be."""
    return Finding(topic, "good", says)


def note(topic: str, says: str, remedy: str = "") -> Finding:
    """Worth knowing."""
    return Finding(topic, "note", says, remedy)


def wrong(topic: str, says: str, remedy: str) -> Finding:
    """Something will fail."""
    return Finding(topic, "wrong", says, remedy)
