"""What this rank has under way: by name, with its age, and told to whoever looks on.

A name is in flight from `begin` until its result is where it belongs. When the session is broken
(a rank died, or it was shut down), everything under way fails at once and nothing begins any more.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from lockstitch.attach.recorder import RECORDER
from lockstitch.collectives.events import Observers, Progress, Stall, Step
from lockstitch.collectives.handles import Handle
from lockstitch.collectives.rank_names import RankNames
from lockstitch.collectives.requests import Kind
from lockstitch.errors import CollectiveError, StalledError, copy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.clock import Clock
    from lockstitch.collectives.handles import Route
    from lockstitch.collectives.request_cache import CachedRequest
    from lockstitch.collectives.requests import Request


class PendingOperations:
    """The handles of one rank's session that are not done.

    A dictionary of the interpreter's own is enough of a lock for one that begins and one that ends.
    """

    def __init__(
        self,
        rank: int,
        clock: Clock,
        *,
        stall_warning_seconds: float = 60.0,
        stall_failure_seconds: float = 0.0,
        names: RankNames | None = None,
    ) -> None:
        self.rank = rank
        self.names = names or RankNames()
        """How errors call the ranks."""
        self.clock = clock
        self.observers = Observers()
        self.submitted = self.completed = self.failed = self.tensor_bytes = 0
        self.handles: dict[tuple[int, str], Handle[Any]] = {}
        """By process set and name."""
        self.is_in_flight: Callable[[tuple[int, str]], bool] = self.handles.__contains__
        """Whether there is one, by process set and name."""
        self._broken: BaseException | None = None
        self.is_broken = False
        """Whether nothing can begin any more."""
        self._now = clock.now
        self._lock = threading.Lock()
        self._stall_warning_seconds = stall_warning_seconds
        self._stall_failure_seconds = stall_failure_seconds
        self._warned: set[Handle[Any]] = set()
        first_look = clock.now() + 1.0
        self._next_look: defaultdict[Route | None, float] = defaultdict(lambda: first_look)

    def __len__(self) -> int:
        return len(self.handles)

    def give_up_after(self, seconds: float) -> None:
        """Says how long an operation may wait for other ranks from now on; 0: for ever."""
        self._stall_failure_seconds = seconds

    def check(self) -> None:
        """Raises why the session is broken, if it is."""
        if self._broken is not None:
            raise copy_of(self._broken)

    def begin(self, request: Request, cached: CachedRequest) -> Handle[Any]:
        """A handle for a new operation; `ValueError` when its name is in flight."""
        handle: Handle[Any] = Handle(request, cached, self._now())
        if self.handles.setdefault(handle.key, handle) is not handle:
            me = self.names.one(self.rank)
            raise ValueError(
                f"{request.name!r} is in flight on {me} already: wait for its handle before "
                "submitting it again, or use another name"
            )
        self._count(handle)
        if self.observers.progress is not None:
            self.tell(handle, Step.SUBMITTED)
        return handle

    def resume(self, handle: Handle[Any]) -> None:
        """Begins an operation by the handle of an earlier one like it, whose name is free."""
        handle.is_done = handle.is_begun = False
        handle.submitted_at = self._now()
        self.handles[handle.key] = handle
        self._count(handle)

    def _count(self, handle: Handle[Any]) -> None:
        # Looked at afterwards: whoever breaks the session off looks for handles afterwards.
        if self._broken is not None:
            self._forget(handle)
            raise copy_of(self._broken)
        self.submitted += 1
        self.tensor_bytes += handle.cached.tensor_bytes

    def withdraw(
        self, request: Request, error: BaseException, look_after: Callable[[], None]
    ) -> None:
        """The submission of a request has failed, or nobody will wait for it. Where an interrupt
        came between `begin` and the backend nobody else knows of it: its name is free. Else the
        other ranks need this one's part, and the backend is to `look_after` it."""
        handle = self.handles.get((request.process_set, request.name))
        if handle is None or handle.request is not request:
            return
        if not handle.is_begun:
            self.fail(handle, error)
        elif request.is_awaited:
            request.is_awaited = False
            look_after()

    def find(self, process_set: int, name: str) -> Handle[Any] | None:
        """The handle in flight under a name."""
        return self.handles.get((process_set, name))

    def note_ready(self, handle: Handle[Any]) -> None:
        """All ranks have submitted the operation: its work begins."""
        if RECORDER.spans is not None:
            handle.ready_at = self._now()
        if self.observers.progress is not None:
            self.tell(handle, Step.READY)

    def complete(self, handle: Handle[Any], value: object) -> None:
        """The operation is done, its name free."""
        try:
            self._forget(handle)
            self.completed += 1
            if self.observers.progress is not None:
                self.tell(handle, Step.DONE)
            if RECORDER.spans is not None:
                self._record(handle)
            handle.complete(value)
        except BaseException:  # an interrupt: nobody else knows of it any more
            handle.complete(value)
            raise

    def fail(self, handle: Handle[Any], error: BaseException) -> None:
        """The operation failed, its name is free."""
        try:
            self._forget(handle)
            if not handle.is_done:
                self.failed += 1
                self.tell(handle, Step.FAILED)
                if self.observers.failed is not None:
                    self.observers.failed(handle, error)
                self._record(handle, has_failed=True)
            handle.fail(error)
        except BaseException:  # as above
            handle.fail(error)
            raise

    def break_off(self, error: BaseException) -> None:
        """Fails all that is under way and all that will be asked for; the first reason stays."""
        with self._lock:
            is_first = self._broken is None
            if self._broken is None:
                self._broken = error
                self.is_broken = True
            left = list(self.handles.values())
        for handle in left:
            self.fail(handle, error)
        if is_first and self.observers.ended is not None:
            self.observers.ended(error)

    def all(self) -> list[Handle[Any]]:
        """Returns the handles of everything under way."""
        return list(self.handles.values())

    def tell(self, handle: Handle[Any], step: Step) -> None:
        """Tells the observer that an operation has reached a step."""
        observer = self.observers.progress
        if observer is not None:
            request = handle.request
            at = self.clock.now()
            observer(Progress(request.name, request.kind, step, at, request.process_set))

    def _record(self, handle: Handle[Any], *, has_failed: bool = False) -> None:
        """Notes an operation that is over for who records, if anybody does."""
        spans = RECORDER.spans
        if spans is not None:
            request, begun = handle.request, handle.submitted_at
            name = f"{request.kind.value} {handle.name}"
            whose = f"set {request.process_set}" if request.process_set else ""
            about = (whose, 0, handle.ready_at, handle.cached.tensor_bytes, 0, has_failed)
            spans.add("collective", name, "", begun, self._now(), *about)

    def look_for_stalls(
        self,
        missing: Callable[[Handle[Any]], tuple[int, ...] | None],
        route: Route | None = None,
        give_up: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Reports what has waited too long on a route (None: the session's backend), each once; to
        be called now and then by who waits.

        `missing` says for whom an operation waits, or None where that has to be asked first. What
        has waited longer than the failure time breaks the session, by `give_up`, which tells other
        ranks, too.
        """
        now = self.clock.now()
        if now < self._next_look[route]:
            return
        self._next_look[route] = now + 1.0
        for handle in self.all():
            waited = now - handle.submitted_at
            # A rank may wait in a join for as long as the others have data.
            if handle.request.kind is Kind.JOIN or handle.is_done or handle.route is not route:
                continue
            is_late = 0 < self._stall_warning_seconds < waited and handle not in self._warned
            is_hopeless = 0 < self._stall_failure_seconds < waited
            if not is_late and not is_hopeless:
                continue
            absent = missing(handle)
            if absent is None:
                continue
            if is_late:
                self._warn(handle, waited, absent)
            if is_hopeless:
                (give_up or self.break_off)(self._stalled(handle, waited, absent))

    def _warn(self, handle: Handle[Any], waited: float, absent: tuple[int, ...]) -> None:
        self._warned.add(handle)
        if self.observers.stall is not None:
            request = handle.request
            self.observers.stall(
                Stall(handle.name, request.kind, waited, absent, request.process_set)
            )

    def _stalled(
        self, handle: Handle[Any], waited: float, absent: tuple[int, ...]
    ) -> CollectiveError:
        whom = self.names.in_words(absent) if absent else "other ranks"
        return StalledError(
            f"{handle.name!r} on {self.names.one(self.rank)} waited {waited:.0f} s for {whom}, "
            "which did not submit it"
        )

    def _forget(self, handle: Handle[Any]) -> None:
        self.handles.pop(handle.key, None)
        if self._warned:
            self._warned.discard(handle)
