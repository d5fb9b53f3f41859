"""The right to read one connection: who has it, who waits for it, and how the next is told.

`runtime.next_reader` decides who that is; this does what it says. The order of steps is what keeps
answers from lying unread: a follower publishes itself, then looks whether the right is free, and a
reader gives the right back, then looks for followers; whoever arms the poller notes that first, and
the pool's reader, when it was told, first strikes out the note.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from lockstitch.interrupts import elsewhere, if_free
from lockstitch.runtime.next_reader import ACTIONS, Action, Event, Successor, Watch, due, successor
from lockstitch.runtime.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeVarTuple, Unpack

    from lockstitch.runtime.pending import Pending
    from lockstitch.runtime.thread_pool import ThreadPool
    from lockstitch.transport.base import Connection

    Ts = TypeVarTuple("Ts")

# For so many checks of the monitor a caller may go on sending requests, or wait for other answers,
# before these are read by somebody else.
_MOST_DEFERRALS: Final = 5

# Named once: to find a member in its enumeration takes longer than all the rest.
_EXPECT, _DEMAND = Event
_IDLE, _SCHEDULED, _ARMED = Watch
_NOTHING, _ASK_LATER, _ARM = Action
_, _, _POOL_NOW, _POOL_LATER = Successor


class AnswerSource(Source, Protocol):
    """The answers that come over the connection; a `StreamChannel` knows about them."""

    requested: int
    """The number of the last request."""
    is_urgent: bool
    """Whether somebody wants them as soon as they come."""
    is_closed: bool
    """Whether none will come any more."""

    def is_expecting(self) -> bool:
        """Whether something is to come."""
        ...

    def has_new_caller(self) -> bool:
        """Whether a thread has waited for the answer to a call of a moment ago, and so may soon
        come for these."""
        ...

    def is_left_over(self) -> bool:
        """Whether something is there that the poller would not tell of."""
        ...


class ReadingRight:
    """See the module. Who holds `lock` has the right; whoever releases it calls `pass_on` if there
    are followers, or if something is still to come."""

    def __init__(self, pool: ThreadPool, connection: Connection, answers: AnswerSource) -> None:
        self._pool = pool
        self._connection = connection
        self._answers = answers
        self.lock = threading.Lock()
        self.followers: deque[Pending] = deque()
        self._arming = threading.Lock()
        # Two notes, and not one `Watch`: each is written in one step, without a lock.
        self._is_armed = False
        self._is_scheduled = False
        self._deferrals_left = 0
        self._requested_before = 0

    def __repr__(self) -> str:
        state = "taken" if self.lock.locked() else "free"
        return f"<ReadingRight {state} · {len(self.followers)} follow · {self.watch.name.lower()}>"

    @property
    def watch(self) -> Watch:
        """How the pool's reader will hear of what comes."""
        return _ARMED if self._is_armed else _SCHEDULED if self._is_scheduled else _IDLE

    # ------------------------------------------------------------ threads that wait

    def follow(self, pending: Pending) -> None:
        """Sleeps until `pending` is done, or its thread is to take the right."""
        followers = self.followers
        with pending.sleeping() as lock:
            try:
                followers.append(pending)
                if (self.lock.locked() or pending.delivered) and not pending.done:
                    lock.acquire()
            finally:
                try:  # noqa: SIM105 - what calls anything may be interrupted itself
                    followers.remove(pending)
                except ValueError:  # an interrupt came before
                    pass

    def read_if_free(self, read: Callable[[Unpack[Ts]], object], *args: Unpack[Ts]) -> bool:
        """Runs `read(*args)` with the right if nobody has it now, and passes it on; whether that
        was so."""
        try:
            has_read = if_free(self.lock, read, *args)
            if has_read:
                self.pass_on()
        except BaseException:  # an interrupt, or an error of a source
            elsewhere(self.pass_on, ())
            raise
        return has_read

    def pass_on(self) -> None:
        """The right was given back: sees to it that whoever is next reads. Harmless when
        repeated."""
        follower = self._first_follower() if self.followers else None
        answers = self._answers
        who = successor(
            has_follower=follower is not None,
            is_closed=answers.is_closed,
            is_left_over=answers.is_left_over,
        )
        if who is _POOL_LATER:
            self.expect()
        elif who is _POOL_NOW:
            self._pool.resume(answers)
        elif follower is not None:
            follower.wake()

    def _first_follower(self) -> Pending | None:
        for follower in tuple(self.followers):
            if not follower.done and not follower.delivered:
                return follower
        return None

    # ------------------------------------------------------------ the pool's reader

    def expect(self) -> None:
        """Answers are expected for which no thread waits."""
        # Every asynchronous call comes here, and mostly the table has `NOTHING` for it.
        if self._is_armed:
            return
        if self._answers.is_urgent:
            self._tell(_DEMAND)
        elif not self._is_scheduled:
            self._tell(_EXPECT)

    def demand(self) -> None:
        """Answers are to be read as soon as they come."""
        self._tell(_DEMAND)

    def note_told(self) -> None:
        """The poller has told the pool's reader, which is about to read."""
        self._is_armed = False

    def watch_end(self) -> None:
        """Has the pool's reader notice that the peer dies, also while nobody waits for it."""
        with self._arming:
            if not self._is_armed:
                self._pool.watch_end(self._connection)

    def _tell(self, event: Event) -> None:
        action = ACTIONS[event][self.watch]
        if action is _NOTHING or not self._is_needed():
            return
        if action is _ARM:
            self._arm()
            return
        self._deferrals_left = _MOST_DEFERRALS
        self._requested_before = self._answers.requested
        self._is_scheduled = True
        try:
            self._pool.look_after(self._check)
        except BaseException:  # an interrupt: then the next who expects something asks for it
            self._is_scheduled = False
            raise

    def _is_needed(self) -> bool:
        """Whether the pool's reader is to hear of anything now; see `next_reader`."""
        return not self.lock.locked() and self._answers.is_expecting()

    def _arm(self) -> None:
        with self._arming:
            self._is_armed = True
            try:
                self._pool.arm(self._connection)
            except BaseException:  # an interrupt: then it is to be armed again
                self._is_armed = False
                raise

    def _check(self) -> bool:
        """The pool's monitor asks, now and then; True: it need not ask again."""
        self._is_scheduled = False  # first, for whoever sends a request just now
        requested, before = self._answers.requested, self._requested_before
        is_busy = requested != before or self._answers.has_new_caller()
        event = due(is_busy=is_busy, deferrals_left=self._deferrals_left)
        action = ACTIONS[event][self.watch]
        if action is _NOTHING or not self._is_needed():
            return True
        if action is _ARM:
            self._arm()
            self._pool.hasten()
            return True
        self._deferrals_left -= 1
        self._requested_before = requested
        self._is_scheduled = True
        return False
