"""The job that this process belongs to, where its launcher has something to say to it.

There is one link in a process, which `hvd` and `rpc` share. It begins when it is first asked for
and ends with the process, or by `close`: an executor that runs one job after another in the same
process closes it after each.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from lockstitch.launcher_link.client import LauncherClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.launcher_link.messages import Update


class WorkerDismissed(SystemExit):
    """The job has no rank for this worker any more, for `reason`: the training is over, or its host
    is to be used no longer. Where nobody catches it the program ends, with status 0."""

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason

    def __str__(self) -> str:
        return f"there is no rank for this worker any more: {self.reason}"


class JobLink:
    """The process's link to the launcher, and who listens to it."""

    def __init__(self) -> None:
        self._client: LauncherClient | None = None
        self._listeners: list[Callable[[Update], None]] = []
        self._parts: list[Callable[[], None]] = []
        os.register_at_fork(after_in_child=self._forget)

    def __repr__(self) -> str:
        return f"<JobLink · {self._client or 'not connected'}>"

    def client(self) -> LauncherClient | None:
        """Returns the link, connected where the environment names one; None where it names none.
        Raises `BoardLostError`."""
        if self._client is None:
            self._client = LauncherClient.from_environment(os.environ)
            if self._client is not None:
                self._client.on_update = self._tell
        return self._client

    def take_part(self, leave: Callable[[], None]) -> None:
        """Has `leave` called when the job is over for this process (`close`): by then it is to hold
        nothing of the job any more. Harmless when repeated."""
        if leave not in self._parts:
            self._parts.append(leave)

    def close(self) -> None:
        """Has everybody leave the job and hangs up; what is asked for then belongs to the next job.
        Harmless when repeated."""
        parts, self._parts = self._parts, []
        for leave in parts:
            leave()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def is_first_world(self) -> bool:
        """Whether no ranks have met before those of now."""
        client = self.client()
        return client is None or client.place is None or client.place.generation == 1

    # ------------------------------------------------------------ updates

    def listen(self, listener: Callable[[Update], None]) -> None:
        """Calls `listener` for each update, from the link's thread; at once for the one that the
        world of now does not account for, if any."""
        self._listeners.append(listener)
        self.remind(listener)

    def remind(self, listener: Callable[[Update], None]) -> None:
        """Tells the listener what it may have missed."""
        client = self.client()
        if client is not None and client.last_update is not None:
            listener(client.last_update)

    def forget(self, listener: Callable[[Update], None]) -> None:
        """Ends `listen`."""
        self._listeners.remove(listener)

    def _tell(self, update: Update) -> None:
        for listener in list(self._listeners):
            listener(update)

    def _forget(self) -> None:
        """A forked child belongs to no job by itself."""
        self._listeners.clear()
        self._parts.clear()


JOB: Final = JobLink()
