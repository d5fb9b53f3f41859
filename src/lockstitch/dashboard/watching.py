"""Looks at a job again and again, and tells whoever has the page open.

A look costs each worker one question. The end of a process of this host is noticed at once, by the
kernel's word, and looked at while its launcher is still there to say how it ended; those of other
hosts are missed at the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Final

from lockstitch.attach.values import Question
from lockstitch.dashboard.history import History
from lockstitch.observe.grouping import JobNotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from lockstitch.dashboard.values import Point, State
    from lockstitch.observe.grouping import Job
    from lockstitch.observe.tracing import Looks

EVERY_SECONDS: Final = 1.0
QUESTION: Final = Question(waits=True, counters=True, threads=True, contexts=True, seconds=0.5)


class Watcher:
    """See the module. `run` looks; `updates` are for those who have the page open."""

    def __init__(self, watch: Looks, every_seconds: float = EVERY_SECONDS) -> None:
        self._watch = watch
        self._every_seconds = every_seconds
        self._history = History()
        self._ends = ProcessEnds()
        self._looked = asyncio.Condition()
        self._looks = 0
        self.is_over = False

    def __repr__(self) -> str:
        return f"<Watcher after {self._looks} looks{' · over' if self.is_over else ''}>"

    async def run(self) -> None:
        """Looks until the job has ended. Raises what a look raises otherwise."""
        try:
            while not self.is_over:
                began_at = time.monotonic()
                await self._look()
                took = time.monotonic() - began_at
                # After a look that took long, a pause that is as long.
                await self._ends.wait(max(self._every_seconds - took, took))
        finally:
            self.is_over = True
            self._ends.close()
            async with self._looked:
                self._looked.notify_all()

    async def updates(self) -> AsyncIterator[tuple[State, Sequence[Point]]]:
        """Yields the state of each look with the points of the charts that are new since the one
        before; the first time all there are. Ends with the job."""
        told, seen = 0, 0.0
        while True:
            async with self._looked:
                while self._looks == told and not self.is_over:
                    await self._looked.wait()
            state = self._history.state
            if self._looks == told or state is None:
                return
            told = self._looks
            fresh = [each for each in self._history.points if each.at > seen]
            seen = state.at
            yield state, fresh

    async def _look(self) -> None:
        now = time.time()
        try:
            job = await asyncio.to_thread(self._watch.look, QUESTION)
        except JobNotFoundError:
            self._history.note_end(now)
            self.is_over = True
        else:
            self._history.note(job, now)
            self._ends.await_those_of(job)
        async with self._looked:
            self._looks += 1
            self._looked.notify_all()


class ProcessEnds:
    """Notices at once when a process of this host ends, where the kernel tells (`pidfd_open`)."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        """By the number of the process."""
        self._has_come = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ProcessEnds of {len(self._descriptors)} processes>"

    def await_those_of(self, job: Job) -> None:
        """Awaits the ends of the workers of a job from now on, and of no others."""
        pids = {each.card.pid for each in job.processes if each.host == os.uname().nodename}
        for pid in self._descriptors.keys() - pids:
            self._forget(pid)
        for pid in pids - self._descriptors.keys():
            with contextlib.suppress(OSError, AttributeError):  # gone, or no such call here
                descriptor = self._descriptors[pid] = os.pidfd_open(pid)
                asyncio.get_running_loop().add_reader(descriptor, self._note, pid)

    async def wait(self, seconds: float) -> None:
        """Waits so long, or until one ends."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._has_come.wait(), seconds)
        self._has_come.clear()

    def close(self) -> None:
        """Awaits none any more; harmless when repeated."""
        for pid in list(self._descriptors):
            self._forget(pid)

    def _note(self, pid: int) -> None:
        self._forget(pid)
        self._has_come.set()

    def _forget(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
