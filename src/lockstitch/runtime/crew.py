"""The threads of one worker: one *leads* and reads, the others *follow* and run user functions.

There is no queue between reading and running. The thread that has read a call runs it itself, and
passes the lead on first, so that somebody goes on reading (leader/followers). Waking a follower is
as dear as a quick function, so a function known to be quick is run *under* the lead. The lead then
lies open as a token that can be taken away by one atomic pop: by a monitor (`runtime.monitor`) when
the function takes milliseconds after all, or by the running thread itself before it waits for
something.

At most `limit` user functions run at once; further calls wait in a backlog. A thread that waits for
another worker inside one of our own waits (`blocked`) does not count, so nested calls of any depth
cannot starve. Control messages and the engine's tasks never queue behind user functions.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from lockstitch.imports import IMPORTS
from lockstitch.runtime.monitor import Monitor, Sight
from lockstitch.runtime.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.transport.base import Connection, Pollable, Poller


class Source(Protocol):
    """Something that the leader reads from, one leader at a time."""

    def serve(self) -> None:
        """Handles what can be read now, and stops when `Crew.run_…` says that the lead is gone.
        Otherwise it has armed itself in the poller again, or is closed."""
        ...

    def leave(self) -> Callable[[], None] | None:
        """The leader goes: arm in the poller, or `Crew.revisit` if something is left to handle.
        What may block is returned, and done when somebody else leads."""
        ...


class _Member(threading.local):
    """What a thread knows of itself; `crew` is None on threads of others."""

    crew: Crew | None = None
    leads = False
    counted = False
    token: list[tuple[Source, bool]] | None = None
    counts_if_lost = False
    after: list[Callable[[], None]] | None = None


_member = _Member()


class Crew:
    """See the module. `enter` runs first on every thread (it sets the current worker)."""

    def __init__(
        self,
        name: str,
        limit: int,
        poller: Poller,
        enter: Callable[[], None],
        report: Callable[[BaseException], None],
    ) -> None:
        self._limit = limit
        self._poller = poller
        self._sources: dict[Pollable, Source] = {}
        self._enter = enter
        self._report = report
        self._lock = threading.Lock()
        self._running = 0
        self._threads = Threads(name, self._join_crew)
        self._backlog: deque[Callable[[], None]] = deque()
        self._revisit: deque[Source] = deque()
        # Source, and whether who runs under the lead counts as running from when it is taken.
        self._token: list[tuple[Source, bool]] = []
        self._serial = self._seen = 0
        self._checks: deque[Callable[[], bool]] = deque()
        self._monitor = Monitor(f"{name}-monitor", self._look)
        self._closed = False
        self.callers: set[object] = set()
        """What threads of this process, asleep now, wait for."""

    # ------------------------------------------------------------ what others ask of it

    def start(self) -> None:
        """Begins to read."""
        self._threads.assign(self._lead)

    def submit(self, call: Callable[[], None]) -> None:
        """Runs a user's call on a thread of the crew, or puts it into the backlog."""
        with self._lock:
            if self._running >= self._limit:
                self._backlog.append(call)
                return
            self._running += 1
        self._threads.assign(lambda: self._run_counted(call))

    def spawn(self, task: Callable[[], None]) -> None:
        """Runs `task` now on a thread of the crew, whatever else runs. The leader, when it handles
        a message, runs it itself directly afterwards."""
        after = _member.after
        if after is not None and _member.crew is self:
            after.append(task)
        else:
            self._threads.assign(lambda: self._guard(task))

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Around a wait: others may read and run meanwhile, and import."""
        is_importing = IMPORTS.under_way and IMPORTS.suspend()
        try:
            if _member.crew is self:
                with self._blocked():
                    yield
            else:
                yield
        finally:
            if is_importing:
                IMPORTS.resume()

    @contextlib.contextmanager
    def _blocked(self) -> Iterator[None]:
        self.yield_lead()
        member = _member
        counted, member.counted = member.counted, False  # a wait inside the wait changes nothing
        if counted:
            self._stop_counting()
        try:
            yield
        finally:
            if counted:
                with self._lock:
                    self._running += 1
                member.counted = True

    def yield_lead(self) -> None:
        """Gives the lead away, if this thread runs a function under it."""
        member = _member
        token, member.token = member.token, None
        if member.after:
            self._assign_all(member.after)
        if token is not None:
            member.counted = member.counts_if_lost
            self._take_lead(token)

    def look_after(self, check: Callable[[], bool]) -> None:
        """Calls `check` now and then until it returns True; it must be short. That may be every 16
        ms only, unless `hasten` has said of late that it could not have waited."""
        self._checks.append(check)
        if self._monitor.rests:
            self._monitor.rouse()

    def hasten(self) -> None:
        """See `Monitor.hasten`."""
        self._monitor.hasten()

    def has_more(self) -> bool:
        """Whether there is something to be read that nobody reads yet."""
        return bool(self._revisit) or self._poller.has_ready()

    def is_wanted_elsewhere(self) -> bool:
        """Whether the leader should not wait for more where it is: there is something to be read,
        or a thread of this process wants to go on as soon as its answer comes."""
        return bool(self.callers or self._revisit) or self._poller.has_ready()

    def is_member(self) -> bool:
        """Whether the current thread belongs to this crew."""
        return _member.crew is self

    @property
    def running(self) -> int:
        """How many user functions run now, those that wait for others left out."""
        return self._running

    @property
    def threads(self) -> int:
        """How many threads there are now."""
        return len(self._threads)

    @property
    def is_resting(self) -> bool:
        """Whether nobody does anything: no thread but the one that reads is awake."""
        return self._threads.busy <= 1 and not self._backlog

    @property
    def backlog(self) -> int:
        """How many calls wait for a thread."""
        return len(self._backlog)

    def living(self) -> list[threading.Thread]:
        """All threads that have not ended, the current one left out."""
        monitor = self._monitor.thread
        threads = [*self._threads.all(), *([] if monitor is None else [monitor])]
        here = threading.current_thread()
        return [each for each in threads if each.is_alive() and each is not here]

    def drop_backlog(self) -> None:
        """The calls that wait for a thread are not run any more."""
        with self._lock:
            self._backlog.clear()

    def close(self, timeout_seconds: float) -> list[str]:
        """Ends all threads that are idle or reading, and waits for the others. Returns the names
        of those that still run user code when the time is over."""
        self._closed = True
        self._poller.wake()
        self._monitor.close()
        self._threads.close()
        self.drop_backlog()
        deadline = time.monotonic() + timeout_seconds
        threads = self._threads.all()
        self._join(threads, deadline)
        monitor = self._monitor.thread
        if monitor is not None:
            self._join([monitor], deadline)
            threads.append(monitor)
        return [thread.name for thread in threads if thread.is_alive()]

    def _join(self, threads: list[threading.Thread], deadline: float) -> None:
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # ------------------------------------------------------------ for sources

    def watch(self, pollable: Pollable, source: Source) -> None:
        """From now on the leader serves `source` when `pollable` is armed and has something."""
        self._sources[pollable] = source
        self._poller.add(pollable)

    def arm(self, pollable: Pollable) -> None:
        """See `Poller.arm`."""
        self._poller.arm(pollable)

    def watch_end(self, connection: Connection) -> None:
        """See `Poller.watch_end`."""
        self._poller.watch_end(connection)

    def forget(self, pollable: Pollable) -> None:
        """Watches it no more."""
        self._poller.remove(pollable)
        self._sources.pop(pollable, None)

    def revisit(self, source: Source) -> None:
        """The next leader serves `source` before it waits for anything."""
        self._revisit.append(source)

    def resume(self, source: Source) -> None:
        """Has `source` served, which has stopped without arming itself."""
        self._revisit.append(source)
        self._poller.wake()

    def handle_under_lead(self, source: Source, handler: Callable[[], None]) -> bool:
        """Runs a handler of control messages, then the tasks that it spawned: the last of them in
        this thread, since often it is the only one. True: this thread still leads."""
        member = _member
        after: list[Callable[[], None]] = []
        member.after = after
        try:
            leads = self.run_under_lead(source, handler)
            while after:
                task = after.pop()
                self._assign_all(after)
                if leads:
                    leads = self.run_under_lead(source, task)
                else:
                    self._guard(task)
        finally:
            member.after = None
        return leads

    def run_quick(self, source: Source, call: Callable[[], None]) -> bool:
        """Runs a user's call that is known to be quick under the lead. If it is not quick after
        all, it counts as running from when the lead is taken; and while such calls make more run
        than may, others take their turn with the slow ones. True: this thread still leads."""
        if self._running > self._limit:
            return self.run_apart(source, call)
        leads = self.run_under_lead(source, call, counts_if_lost=True)
        if not leads:
            _member.counted = False
            self._run_counted(self._stop_running())
        return leads

    def run_under_lead(
        self, source: Source, task: Callable[[], None], *, counts_if_lost: bool = False
    ) -> bool:
        """Runs `task` in the leading thread, the lead open to be taken. True: it still leads."""
        member = _member
        token = [(source, counts_if_lost)]
        self._serial += 1
        member.counts_if_lost = counts_if_lost
        member.token = self._token = token
        if self._monitor.rests:
            self._monitor.rouse()
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - a task that fails must not end the thread
            self._report(error)
        member.token = None
        try:
            token.pop()
        except IndexError:
            member.leads = False
            return False
        return True

    def _take_lead(self, token: list[tuple[Source, bool]]) -> None:
        """Takes the lead from whoever runs under it, unless somebody else was quicker."""
        try:
            source, counts_if_lost = token.pop()
        except IndexError:
            return
        if counts_if_lost:
            with self._lock:
                self._running += 1
        self._pass_on(source)

    def _assign_all(self, tasks: list[Callable[[], None]]) -> None:
        while tasks:
            task = tasks.pop()
            self._threads.assign(lambda task=task: self._guard(task))  # type: ignore[misc]

    def run_apart(self, source: Source, call: Callable[[], None]) -> bool:
        """Runs a user's call in the leading thread after passing the lead on (False), or puts it
        into the backlog when as many run as may (True: it still leads)."""
        with self._lock:
            if self._running >= self._limit:
                self._backlog.append(call)
                return True
            self._running += 1
        _member.leads = False
        self._pass_on(source)
        self._run_counted(call)
        return False

    # ------------------------------------------------------------ threads

    def _join_crew(self) -> None:
        self._enter()
        _member.crew = self

    def _guard(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - a task that fails must not end the thread
            self._report(error)

    # ------------------------------------------------------------ user calls

    def _run_counted(self, call: Callable[[], None] | None) -> None:
        """Runs `call`, if any, and then what waits in the backlog; it is counted already."""
        while call is not None:
            _member.counted = True
            self._guard(call)
            _member.counted = False
            call = self._stop_running()

    def _stop_counting(self) -> None:
        """The current thread begins to wait: lets the next call of the backlog begin."""
        following = self._stop_running()
        if following is not None:
            self._threads.assign(lambda: self._run_counted(following))

    def _stop_running(self) -> Callable[[], None] | None:
        """One less runs; or the call of the backlog that runs in its place, counted already."""
        with self._lock:
            if self._backlog and self._running <= self._limit:
                return self._backlog.popleft()
            self._running -= 1
            return None

    # ------------------------------------------------------------ leading

    def _lead(self) -> None:
        poller, revisit, member = self._poller, self._revisit, _member
        member.leads = True
        while not self._closed:
            while revisit:
                source = revisit.popleft()
                try:
                    source.serve()
                except Exception as error:  # noqa: BLE001 - one broken source must not end the reading
                    self._report(error)
                if not member.leads:
                    return
            for pollable in poller.wait(None):
                ready = self._sources.get(pollable)
                if ready is not None:
                    revisit.append(ready)

    def _pass_on(self, source: Source) -> None:
        last = source.leave()
        self._threads.assign(self._lead)
        if last is None:
            return
        if self.is_member():
            last()
        else:  # the monitor must not wait for a slow peer
            self._threads.assign(lambda: self._guard(last))

    # ------------------------------------------------------------ the monitor

    def _look(self) -> Sight:
        """Takes the lead from a thread that runs the same function under it as at the last look."""
        had_checks = len(self._checks) > 0
        if had_checks:
            self._look_after_all()
        serial = self._serial
        if serial != self._seen:
            self._seen = serial
            return Sight.RUNNING if self._token else Sight.ACTIVE
        if self._token:
            self._take_lead(self._token)
            return Sight.NEEDED
        return Sight.ACTIVE if had_checks else Sight.QUIET

    def _look_after_all(self) -> None:
        for _ in range(len(self._checks)):
            check = self._checks.popleft()
            try:
                if not check():
                    self._checks.append(check)
            except Exception as error:  # noqa: BLE001 - one broken check must not end the monitor
                self._report(error)
