"""A job of N workers on this machine that stand and fall together.

When a worker fails, the others get a moment to fail by themselves (often they are about to, and
what they say helps) before they are told to stop. It is a longer one while nobody has failed but
because a peer was gone: that one is on its way out, and what it says counts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lockstitch.launch.handover import secret_for
from lockstitch.launch.job import Job, TrackedWorker
from lockstitch.launch.meeting import MeetingPlace
from lockstitch.launch.process import WorkerProcess, worker_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.launch.outputs import Outputs
    from lockstitch.launch.screen import Screen

_SETTLING_SECONDS = 0.5


class LocalJob(Job):
    """Runs `command` as `workers` processes; `run()` returns the job's exit status.

    0 if all ended well; that of the worker that failed first; 128 + n if signal n stopped the job
    (130 after Ctrl-C). Meanwhile this process's children and its signals are the job's: call it
    from the main thread of a process that does nothing else.
    """

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        screen: Screen,
        grace_seconds: float,
        outputs: Outputs | None,
    ) -> None:
        super().__init__(screen, grace_seconds, outputs)
        self._command = command
        self._workers = workers

    def begin(self) -> None:
        meeting = self.resources.enter_context(MeetingPlace())
        secret = self.resources.enter_context(secret_for(os.environ))
        inherited = {**os.environ, **secret}
        for rank in range(self._workers):
            environment = worker_environment(rank, self._workers, meeting, inherited)
            self.start(WorkerProcess(rank, self._command, environment))

    def note_end(self, tracked: TrackedWorker, code: int) -> None:
        if code != 0:
            self.note_failure(tracked, code)
            self.plan_end(_SETTLING_SECONDS)
