"""Workers as only their launcher knows them, in words: those that have ended, or have not begun. No
I/O.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lockstitch.attach.values import LaunchedWorker
    from lockstitch.observe.grouping import Job

_WELL: Final = re.compile(r"exit code 0\b")


def unseen_workers(job: Job) -> list[LaunchedWorker]:
    """Returns those that the launcher has started and that have told nothing: they have ended, or
    have not begun."""
    seen = {each.pid for each in job.cards}
    launched = () if job.launcher is None else job.launcher.launched
    return [each for each in launched if each.pid not in seen]


def has_ended_well(launched: LaunchedWorker) -> bool:
    """Returns whether a worker has ended without a failure."""
    return launched.ended_at is not None and _WELL.match(launched.how) is not None


def launched_in_words(launched: LaunchedWorker) -> str:
    """Returns how a worker has ended, or why it tells nothing itself."""
    if launched.ended_at is not None:
        return launched.how
    if launched.host:
        return f"runs on host {launched.host}: ask there"
    return "cannot be asked: it has not begun, or is about to end"
