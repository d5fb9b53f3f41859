"""The threads of one worker: one, the *reader*, reads what arrives; the others run user functions.

There is no queue between reading and running (the pattern is known as leader/followers). One thread
at a time has the *reading right*:

                 ┌──────────────── a message was handled ────────────────┐
                 ▼                                                       │
    WAITS ──▶ READS ── a handler, or a quick function ──▶ RUNS, the right lies open
      ▲          │                                          │
      │          │ any other function: `run_apart`          │ taken: by the monitor, after
      │          ▼                                          │ milliseconds; by the thread
      └── another thread ◀──────────────────────────────────┘ itself, before it waits
          reads on; this one runs the function to its end, and reads no more

Waking another thread costs as much as a quick function, so a function known to be quick is run by
the reader itself. The right then lies open: it is the only item of a list, the token, and whoever
pops it has the right. The pop is atomic, so the right is taken once, or found again by the thread
that left it there.

At most `limit` user functions run at once; further calls wait in a backlog. A thread that waits for
another worker inside one of our own waits (`blocked`) does not count, so nested calls of any depth
cannot starve. Control messages and the engine's tasks never queue behind user functions.

A function that waits again and again for what a message brings (`wait_for`) would have two threads
take turns. So whoever reads the first such message leaves the right with the function's thread,
which from then on reads for itself while it waits; while it computes, the right lies open.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from lockstitch.imports import IMPORTS
from lockstitch.interrupts import elsewhere
from lockstitch.runtime.call_limit import CallLimit
from lockstitch.runtime.inherited import INHERITED
from lockstitch.runtime.monitor import Checks, Monitor, Sight
from lockstitch.runtime.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lockstitch.runtime.arrival import Arrival
    from lockstitch.runtime.source import Source
    from lockstitch.transport.base import Connection, Pollable, Poller


class _ThreadState:
    """What a thread knows of itself; `pool` is None on threads of others."""

    __slots__ = (
        "after",
        "arrival",
        "counted",
        "counts_if_lost",
        "is_reader",
        "keeps",
        "left",
        "pool",
        "token",
    )

    def __init__(self) -> None:
        self.pool: ThreadPool | None = None
        self.is_reader = False
        self.counted = False
        self.token: list[tuple[Source | None, bool]] | None = None
        self.counts_if_lost = False
        self.after: list[Callable[[], None]] | None = None
        self.keeps = False
        """Whether `token` is what it was left with between two waits, and no message is under
        way."""
        self.arrival: Arrival | None = None
        """While it reads for itself: until what is there."""
        self.left: Source | None = None
        """In the middle of what it has stopped, since that was there."""


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = _ThreadState()  # an attribute of this costs six times one of that


_local = _Local()


class ThreadPool:
    """See the module. `enter` runs first on every thread (it sets the current worker)."""

    def __init__(
        self,
        name: str,
        limit: int,
        poller: Poller,
        enter: Callable[[], None],
        report: Callable[[BaseException], None],
    ) -> None:
        self._calls = CallLimit(limit)
        self._poller = poller
        self._sources: dict[Pollable, Source] = {}
        self._enter = enter
        self._report = report
        self._threads = Threads(name, self._join_pool)
        self._revisit: deque[Source] = deque()
        # The source, and whether what the reader runs counts as running once the right is taken.
        self._token: list[tuple[Source | None, bool]] = []
        self._asleep: set[Arrival] = set()
        self._serial = self._seen = 0
        self._checks = Checks(report)
        self._monitor = Monitor(f"{name}-monitor", self._look)
        self._closed = False
        self.callers: set[object] = set()
        """What threads of this process, asleep now, wait for."""
        self.latest_wait = -math.inf
        """When the call was made whose answer one of them has begun to wait for last."""

    # ------------------------------------------------------------ what others ask of it

    def start(self) -> None:
        """Begins to read."""
        self._threads.assign(self._read)

    def submit(self, call: Callable[[], None]) -> None:
        """Runs a user's call on a thread of the pool, or leaves it in the backlog: they begin in
        the order in which they were submitted."""
        try:
            if self._calls.line_up(call):
                self._threads.assign(self._run_backlog)
        except Exception:  # the system has no more threads
            self._calls.is_one_coming = False
            raise
        except BaseException:  # an interrupt, after which nobody may be coming
            elsewhere(self._threads.assign, (self._run_backlog,))
            raise

    def spawn(self, task: Callable[[], None]) -> None:
        """Runs `task` now on a thread of the pool, whatever else runs. The reader, when it handles
        a message, runs it itself directly afterwards."""
        after = _local.thread.after
        if after is not None and _local.thread.pool is self:
            after.append(task)
        else:
            self._threads.assign(lambda: self._guard(task))

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Around a wait: others may read and run meanwhile, and import."""
        is_importing = IMPORTS.under_way and IMPORTS.suspend()
        try:
            if _local.thread.pool is self:
                with self._blocked():
                    yield
            else:
                yield
        finally:
            if is_importing:
                IMPORTS.resume()

    @contextlib.contextmanager
    def _blocked(self) -> Iterator[None]:
        self.yield_reading_right()
        thread = _local.thread
        counted, thread.counted = thread.counted, False  # a wait inside the wait changes nothing
        following = self._calls.end() if counted else None
        if following is not None:  # a call of the backlog runs in the place of this one
            self._threads.assign(lambda: self._run_counted(following))
        around = INHERITED.around_waits
        try:
            if around is None:
                yield
            else:
                with around():
                    yield
        finally:
            if counted:
                self._calls.begin_anyway()
                thread.counted = True

    def yield_reading_right(self) -> None:
        """Gives the reading right away, if this thread has it and runs a function."""
        thread = _local.thread
        token, thread.token, thread.keeps = thread.token, None, False
        if thread.after is not None:  # what it spawns from now on must not wait for it either
            after, thread.after = thread.after, None
            self._assign_all(after)
        if token is not None:
            thread.counted = thread.counts_if_lost
            self._take_reading_right(token)

    def wait_for(self, arrival: Arrival) -> None:
        """Blocks until `arrival` is there. While nobody else reads, a thread that runs a user's
        call reads for itself; afterwards the reading right lies open until its next wait."""
        thread = _local.thread
        if thread.pool is not self:
            with self.blocked():
                arrival.sleep()
            return
        source, may_read = self._taken_back()
        may_keep = arrival.may_keep = arrival.may_keep and thread.counted
        with self.blocked():
            if source is not None and not arrival.is_near:
                last, source = source.leave(), None
                if last is not None:
                    self.spawn(last)
            if may_read:
                source, may_read = self._read_until(arrival, source)
            self._asleep.add(arrival)
            arrival.sleep()
            self._asleep.discard(arrival)
        if may_read and may_keep and not self._asleep:
            arrival.token = self._lay_open(source)
        elif may_read:
            self._pass_on(source)
        if arrival.token is not None:
            thread.token, thread.keeps, thread.counts_if_lost = arrival.token, True, thread.counted

    def bring(self, arrival: Arrival) -> None:
        """`arrival` is there. From the reader it takes the reading right along, if it may, and if
        nobody else waits for the reader."""
        thread = _local.thread
        is_reading = thread.pool is self and thread.token is not None and not thread.keeps
        is_alone = thread.arrival is None and self._asleep == {arrival}
        if is_reading and is_alone and arrival.may_keep:
            try:
                source, counts_if_lost = thread.token.pop()  # type: ignore[union-attr]
            except IndexError:
                pass  # it was taken
            else:
                if counts_if_lost:
                    self._calls.begin_anyway()
                arrival.token = self._lay_open(source)
        if thread.arrival is arrival:
            arrival.interrupt = None  # this thread itself, which will look
        arrival.finish()

    def look_after(self, check: Callable[[], bool]) -> None:
        """Calls `check` now and then until it returns True; it must be short. That may be every 16
        ms only, unless `hasten` has said of late that it could not have waited."""
        self._checks.add(check)
        if self._monitor.rests:
            self._monitor.rouse()

    def hasten(self) -> None:
        """See `Monitor.hasten`."""
        self._monitor.hasten()

    def has_more(self) -> bool:
        """Whether there is something to be read that nobody reads yet."""
        return bool(self._revisit) or self._poller.has_ready()

    def is_wanted_elsewhere(self) -> bool:
        """Whether the reader should not wait for more where it is: there is something to be read,
        or a thread of this process wants to go on as soon as its answer comes."""
        return bool(self.callers or self._revisit) or self._poller.has_ready()

    def owns_current_thread(self) -> bool:
        """Whether the current thread belongs to this thread pool."""
        return _local.thread.pool is self

    @property
    def running(self) -> int:
        """How many user functions run now, those that wait for others left out."""
        return self._calls.running

    @property
    def threads(self) -> int:
        """How many threads there are now."""
        return len(self._threads)

    @property
    def is_resting(self) -> bool:
        """Whether nobody does anything: no thread but the one that reads is awake."""
        return self._threads.busy <= 1 and not self._calls.backlog

    @property
    def backlog(self) -> int:
        """How many calls wait for a thread."""
        return self._calls.backlog

    def living(self) -> list[threading.Thread]:
        """All threads that have not ended, the current one left out."""
        monitor = self._monitor.thread
        threads = [*self._threads.all(), *([] if monitor is None else [monitor])]
        here = threading.current_thread()
        return [each for each in threads if each.is_alive() and each is not here]

    def drop_backlog(self) -> None:
        """The calls that wait for a thread are not run any more."""
        self._calls.drop_backlog()

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
        """From now on the reader serves `source` when `pollable` is armed and has something."""
        self._sources[pollable] = source
        self._poller.add(pollable)

    def arm(self, pollable: Pollable) -> None:
        """See `Poller.arm`."""
        self._poller.arm(pollable)

    def watch_end(self, connection: Connection) -> None:
        """See `Poller.watch_end`."""
        self._poller.watch_end(connection)

    def forget(self, pollable: Pollable) -> None:
        """Stops watching a pollable."""
        self._poller.remove(pollable)
        self._sources.pop(pollable, None)

    def revisit(self, source: Source) -> None:
        """The next reader serves `source` before it waits for anything."""
        self._revisit.append(source)

    def resume(self, source: Source) -> None:
        """Has `source` served, which has stopped without arming itself."""
        self._revisit.append(source)
        self._poller.wake()

    def handle_as_reader(self, source: Source, handler: Callable[[], None]) -> bool:
        """Runs a handler of control messages, then the tasks that it spawned: the last of them in
        this thread, since often it is the only one. True: this thread is still the reader."""
        thread = _local.thread
        after: list[Callable[[], None]] = []
        thread.after = after
        try:
            is_reader = self.run_as_reader(source, handler)
            while after:
                if thread.arrival is not None:  # it has something else to do
                    self._assign_all(after)
                    break
                task = after.pop()
                self._assign_all(after)
                if is_reader:
                    is_reader = self.run_as_reader(source, task)
                else:
                    self._guard(task)
        finally:
            thread.after = None
        return is_reader

    def run_quick(self, source: Source, call: Callable[[], None]) -> bool:
        """Runs a user's call that is known to be quick in the reading thread. If it is not quick
        after all, it counts as running from when the reading right is taken; and while such calls
        make more run than may, others take their turn with the slow ones. True: this thread is
        still the reader."""
        if self._calls.running > self._calls.most or _local.thread.arrival is not None:
            return self.run_apart(source, call)
        is_reader = self.run_as_reader(source, call, counts_if_lost=True)
        if not is_reader:
            _local.thread.counted = False
            self._run_counted(self._calls.end())
        return is_reader

    def run_as_reader(
        self, source: Source, task: Callable[[], None], *, counts_if_lost: bool = False
    ) -> bool:
        """Runs `task` in the reading thread; the reading right may be taken meanwhile. True: it was
        not, and this thread is still the reader."""
        thread = _local.thread
        token: list[tuple[Source | None, bool]] = [(source, counts_if_lost)]
        self._serial += 1
        thread.counts_if_lost = counts_if_lost
        thread.token = self._token = token
        if self._monitor.rests:
            self._monitor.rouse()
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - a task that fails must not end the thread
            self._report(error)
        if thread.keeps:  # it has lost this right, and waited with another one since
            self.yield_reading_right()
        thread.token = None
        try:
            token.pop()
        except IndexError:
            thread.is_reader = False
            return False
        if thread.arrival is not None and thread.arrival.is_there:
            thread.left = source
            return False
        return True

    def _take_reading_right(self, token: list[tuple[Source | None, bool]]) -> None:
        """Takes the reading right from a reader that runs something, unless it is gone already."""
        try:
            source, counts_if_lost = token.pop()
        except IndexError:
            return
        if counts_if_lost:
            self._calls.begin_anyway()
        self._pass_on(source)

    def _assign_all(self, tasks: list[Callable[[], None]]) -> None:
        while tasks:
            task = tasks.pop()
            self._threads.assign(lambda task=task: self._guard(task))  # type: ignore[misc]

    def run_apart(self, source: Source, call: Callable[[], None]) -> bool:
        """Runs a user's call in the reading thread after passing the reading right on (False), or
        puts it into the backlog when as many run as may (True: it is still the reader). One that
        reads for itself has another thread run it."""
        if _local.thread.arrival is not None:
            self.submit(call)
            return True
        if not self._calls.begin(call):
            return True
        _local.thread.is_reader = False
        self._pass_on(source)
        self._run_counted(call)
        return False

    # ------------------------------------------------------------ threads

    def _join_pool(self) -> None:
        self._enter()
        _local.thread.pool = self

    def _guard(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - a task that fails must not end the thread
            self._report(error)

    # ------------------------------------------------------------ user calls

    def _run_backlog(self) -> None:
        """Runs what may begin of the backlog, each call on a thread of its own."""
        call = self._calls.begin_next()
        if call is not None and self._calls.backlog:
            # Where the system has no more threads, the others run when this call has ended.
            self._guard(lambda: self._threads.assign(self._run_backlog))
        self._run_counted(call)

    def _run_counted(self, call: Callable[[], None] | None) -> None:
        """Runs `call`, if any, and then what waits in the backlog; it is counted already."""
        while call is not None:
            _local.thread.counted = True
            self._guard(call)
            if _local.thread.keeps:
                self.yield_reading_right()
            _local.thread.counted = False
            call = self._calls.end()

    # ------------------------------------------------------------ reading

    def _read(self) -> None:
        revisit = self._revisit
        _local.thread.is_reader = True
        while not self._closed:
            while revisit:
                if not self._serve(revisit.popleft()):
                    return
            self._poll()

    def _serve(self, source: Source) -> bool:
        """Reads what a source has; whether this thread is the reader still."""
        try:
            source.serve()
        except BaseException as error:  # noqa: BLE001 - one broken source must not end the reading
            self._report(error)
        return _local.thread.is_reader

    def _poll(self) -> None:
        """Waits until sources have something to be read, and notes them."""
        for pollable in self._poller.wait(None):
            ready = self._sources.get(pollable)
            if ready is not None:
                self._revisit.append(ready)

    def _read_until(self, arrival: Arrival, source: Source | None) -> tuple[Source | None, bool]:
        """Reads until `arrival` is there, beginning with `source`, if any. Returns in the middle of
        which source it has stopped, and whether it is the reader still."""
        revisit, thread = self._revisit, _local.thread
        thread.is_reader, thread.arrival, arrival.interrupt = True, arrival, self._poller.wake
        try:
            while not arrival.is_there and not self._closed:
                if source is None and revisit:
                    source = revisit.popleft()
                if source is None:
                    self._poll()
                    continue
                if not self._serve(source):
                    return None, False
                source, thread.left = thread.left, None
            return source, True
        finally:
            thread.is_reader, thread.arrival, arrival.interrupt = False, None, None

    def _taken_back(self) -> tuple[Source | None, bool]:
        """The right that this thread was left with, if it has it still: in the middle of which
        source, and whether. If it has another one, that is given away."""
        thread = _local.thread
        if not thread.keeps:
            self.yield_reading_right()
            return None, False
        token, thread.token, thread.keeps = thread.token, None, False
        try:
            source, _ = token.pop()  # type: ignore[union-attr]
        except IndexError:
            return None, False
        return source, True

    def _lay_open(self, source: Source | None) -> list[tuple[Source | None, bool]]:
        """The reading right, for a thread that will come back for it, unless the monitor takes it
        before."""
        token = self._token = [(source, False)]
        self._serial += 1
        if self._monitor.rests:
            self._monitor.rouse()
        return token

    def _pass_on(self, source: Source | None) -> None:
        last = None if source is None else source.leave()
        self._threads.assign(self._read)
        if last is None:
            return
        if self.owns_current_thread():
            last()
        else:  # the monitor must not wait for a slow peer
            self._threads.assign(lambda: self._guard(last))

    # ------------------------------------------------------------ the monitor

    def _look(self) -> Sight:
        """Takes the reading right from a thread that runs the same function as at the last look."""
        had_checks = self._checks.run()
        serial = self._serial
        if serial != self._seen:
            self._seen = serial
            return Sight.RUNNING if self._token else Sight.ACTIVE
        if self._token:
            self._take_reading_right(self._token)
            return Sight.NEEDED
        return Sight.ACTIVE if had_checks else Sight.QUIET
