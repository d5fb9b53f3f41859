"""Who in this process has something to tell: workers of rpc, ranks of reductions, steps.

Each part registers itself when it is imported or made, and is asked from a thread of its own while
the process runs on. So a source takes no lock that is held for long, waits for nobody longer than a
moment, and touches no user's objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.attach.values import (
        GroupReport,
        LaunchedWorker,
        OtherWait,
        Question,
        StepReport,
        WorkerReport,
    )


class Sources:
    """What this process can be asked for. A process has one, `SOURCES`."""

    def __init__(self) -> None:
        self.workers: list[Callable[[Question], Sequence[WorkerReport]]] = []
        """Those of `lockstitch.rpc`."""
        self.groups: list[Callable[[Question], Sequence[GroupReport]]] = []
        """Ranks of reductions."""
        self.waits: list[Callable[[Question], Sequence[OtherWait]]] = []
        """What the process waits for in whole."""
        self.launched: Callable[[], Sequence[LaunchedWorker]] | None = None
        """The workers that this process has started as a launcher."""
        self.step: Callable[[], StepReport | None] | None = None
        """The last step of the program."""
        self.names: list[Callable[[], Sequence[str]]] = []
        """How this process is called by others."""

    def all_names(self) -> tuple[str, ...]:
        """Returns the names of this process's workers."""
        return tuple(dict.fromkeys(name for names in list(self.names) for name in names()))


SOURCES: Final = Sources()
