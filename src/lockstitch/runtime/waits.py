"""What one worker waits for now: its calls without an answer, the requests that it serves and where
their functions are, and whatever else its services wait for. A hang can thus be explained."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.attach.threads import SourceFolders, frames_of, served_line
from lockstitch.inquiry import INQUIRY
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.reports import Waiting
from lockstitch.runtime.worker import PROCESS

if TYPE_CHECKING:
    from types import FrameType

    from lockstitch.runtime.invocation import Invocation
    from lockstitch.runtime.worker import Worker


@dataclass(frozen=True, slots=True)
class WorkerWaits:
    """`calls`: (to whom, function, seconds since); `serving`: (caller, function, seconds since,
    where it is or why it is parked); `others`: lines of the services."""

    name: str
    calls: tuple[tuple[str, str, float], ...]
    serving: tuple[tuple[str, str, float, str], ...]
    others: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.calls or self.serving or self.others)


def look(worker: Worker) -> WorkerWaits:
    """What `worker` waits for at this moment."""
    agent, now = worker.agent, worker.clock.now()
    calls = tuple(
        (channel.peer.name, name_of(pending.what), round(now - pending.since, 3))
        for channel in agent.peers.channels()
        for pending in channel.pending()
        if not pending.is_shared  # a thread that listens for what its service tells of below
    )
    frames = sys._current_frames()
    serving = tuple(
        (each.caller_name, each.what, round(now - each.since, 3), _where(each, frames))
        for each in agent.running_requests.list()
    )
    others = tuple(
        wait.what
        for service in worker.services()
        if isinstance(service, Waiting)
        for wait in service.waits()
    )
    # A process has one worker of its own; those that tests have in it wait for nothing else.
    beside = INQUIRY.lines() if worker is PROCESS.worker else None
    return WorkerWaits(worker.name, calls, serving, (*others, *(beside or ())))


def _where(invocation: Invocation, frames: dict[int, FrameType]) -> str:
    """The innermost line of the user's own code that the request's thread is in."""
    thread = invocation.thread
    frame = frames.get(thread) if thread is not None else None
    if frame is None:
        return "parked: it waits for a future or for references to be confirmed"
    return str(served_line([*frames_of(frame)], SourceFolders()))
