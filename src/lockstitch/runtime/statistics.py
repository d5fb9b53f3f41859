"""What an agent has to do with, and what went wrong so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class AgentStatistics:
    """What an agent has to do with at a moment."""

    outstanding: int
    """Requests of this worker without an answer."""
    served: int
    """Requests of others that are being served, parked ones too."""
    finished: int
    """Those that were, so far."""
    threads: int
    backlog: int
    """Calls that wait for a thread."""
    refused: int
    """How many greetings of workers that were given up as dead."""
    repeated: int
    """How many requests that came a second time, and were not served again."""
    failures: tuple[str, ...]
    """The last hundred things that went wrong and that nobody waited for: errors of tasks, answers
    and messages that could not be delivered."""
    strangers: Mapping[str, int] = field(default_factory=dict)
    """How many connections were turned away before they could say anything, by reason."""
