"""The requests of this worker to one peer that wait for their answers, however they travel: over a
connection (`runtime.stream_channel`), or not at all (`runtime.loopback`)."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lockstitch.errors import LockstitchError, RpcTimeoutError, copy_of
from lockstitch.interrupts import elsewhere, if_free
from lockstitch.runtime.flow_control import FlowControl
from lockstitch.runtime.functions import BY_VALUE, OutgoingFunctions
from lockstitch.runtime.inherited import INHERITED
from lockstitch.transport.base import SendTimeoutError
from lockstitch.wire.encodings import NOTHING
from lockstitch.wire.messages import Alive, Call, Cancel, Failure, Payload, RemoteCall, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.errors import PeerDiedError, RpcError
    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.runtime.core import Core
    from lockstitch.runtime.pending import Pending
    from lockstitch.runtime.reply_side_push import PushListener
    from lockstitch.transport.base import RemainingTime
    from lockstitch.wire.messages import Heartbeat, Message

_LOOK_SECONDS = 0.1
_FEWER_SECONDS = 0.01
_EMPTY_CALL = (BY_VALUE, None, None, None, Payload(NOTHING, b"", ()))
_NO_ANSWER = "did not answer in time"
_STANDS_STILL = "takes in nothing"


def timeout_of(pending: Pending, peer: WorkerInfo, what: str) -> RpcTimeoutError:
    """The time of a request is over, because `peer` has done `what`."""
    milliseconds = round((pending.timeout or 0.0) * 1000)
    return RpcTimeoutError(
        f"RPC ran for more than set timeout ({milliseconds} ms) and will now be marked "
        f"with an error: worker {peer.name!r} {what}"
    )


class AnswerSink(Protocol):
    """What becomes of the answers to requests; `runtime.answers` says."""

    @property
    def handle(self) -> Callable[[WorkerId, Message], None]:
        """Takes a message that is no answer, and comes where answers do."""
        ...

    def complete_future(
        self, pending: Pending, answer: Message, peer: WorkerId, *, is_waiting: bool = False
    ) -> None:
        """The answer to a request that a future stands for, here or soon."""
        ...

    def fail_pending(
        self, pending: Pending, error: BaseException, peer: WorkerId | None = None
    ) -> None:
        """A request ends in an error of this side. `peer`: who is to be asked what it does, if the
        request's time is over."""
        ...

    def discard(self, body: Payload, peer: WorkerId) -> None:
        """Nobody will read this answer: gives back what it carries."""
        ...


class Channel:
    """Requests to one worker that wait for their answers; subclasses know how messages travel."""

    def __init__(self, core: Core, peer: WorkerInfo, answers: AnswerSink) -> None:
        options = core.options
        self.core = core
        self.peer = peer
        self._answers = answers
        self.functions = OutgoingFunctions(options.interned_functions)
        self.requested = 0
        self.flow_control = FlowControl(options.bytes_in_flight)
        self.error: RpcError | None = None
        """Why nothing can be sent or answered here any more."""
        self.device_map = core.device_map(peer)
        """Where tensors in calls to this peer go, and those in its answers; None: no map says."""
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._most = options.calls_in_flight
        self._failing = threading.Lock()
        self._cancelling = threading.Lock()
        self._unwanted: deque[Message] = deque()
        """What the callee is still to be told about those."""
        self._given_up: set[int] = set()
        """Requests that nobody waits for any more; they have not been answered either."""
        self._last_delivered = 0
        self.is_urgent = False
        """Somebody wants answers to be read as soon as they come."""
        self.listeners: int = 0
        """How many wait for messages that the peer pushes."""
        self._is_asking = False
        """A heartbeat is unanswered."""

    @property
    def outstanding(self) -> int:
        """How many requests have no answer yet."""
        return len(self._pending)

    def pending(self) -> list[Pending]:
        """The requests without an answer."""
        return list(self._pending.values())

    def unanswered(self) -> list[tuple[int, Pending]]:
        """The same, each with its number."""
        return list(self._pending.items())

    def transmit(self, message: Message, remaining_time: RemainingTime | None = None) -> None:
        """Sends a message. Raises `PeerDiedError`, and `SendTimeoutError` when its `remaining_time`
        is over: then the message will leave later."""
        raise NotImplementedError

    def post(self, message: Message, remaining_time: RemainingTime | None = None) -> None:
        """Sends a message, unless the agent's `send_filter` does otherwise with it."""
        send_filter = self.core.send_filter
        if send_filter is None:
            self.transmit(message, remaining_time)
        else:
            send_filter(self.peer.worker, message, self.transmit)

    def request(self, pending: Pending, build: Callable[[int, float | None], Message]) -> int:
        """Sends the request that `build` makes of its number and of the timeout that travels;
        `pending` gets the answer."""
        if pending.nbytes:
            self._wait_for_room(pending)
        number = self.requested = pending.number = next(self._numbers)
        self._pending[number] = pending
        deadline, deadlines = pending.deadline, self.core.deadlines
        try:
            if self.error is not None:
                raise copy_of(self.error)  # what is raised keeps the frames that it passes
            remaining_time = None
            if deadline is not None or pending.future is not None:
                remaining_time = partial(self._seconds_to_send, pending)
            send = self.transmit if self.core.send_filter is None else self.post
            send(build(number, pending.travels), remaining_time)
        except SendTimeoutError as error:  # it will leave later, and may be answered
            if pending.future is None:
                self._give_up(number, pending)
                raise self._timeout(pending, _STANDS_STILL) from error
        except Exception as error:
            self._take_out(number)
            if pending.kept:
                pending.take_back(error)
            raise
        except BaseException:
            elsewhere(self._leave_unwanted, (pending, pending.kept, build))
            raise
        if deadline is not None and deadline < deadlines.next:
            deadlines.announce(deadline)
        return number

    def _seconds_to_send(self, pending: Pending) -> float:
        """How long the sender of a request still waits for room: until its deadline, or, where
        nobody waits for the answer now, no longer than the peer seems to take it in."""
        if pending.deadline is None:
            return self._seconds_to_still(pending)
        seconds = pending.deadline - self.core.clock.now()
        return seconds if pending.future is None else min(seconds, self._seconds_to_still(pending))

    def _seconds_to_still(self, pending: Pending) -> float:
        """In how many seconds the peer passes for one that takes in nothing."""
        del pending
        return math.inf

    def _may_add(self) -> bool:
        """Whether a request may be added to what the peer has not taken in yet."""
        return False

    @property
    def is_behind(self) -> bool:
        """Whether the peer has not taken in yet what others had no time to wait for."""
        return False

    def _wait_until_clear(self, seconds: float) -> None:
        """Returns when it is not behind any more, and after that time in any case."""

    @property
    def is_free(self) -> bool:
        """Whether it is neither behind nor full: the short way to ask for both."""
        return not self.is_behind and len(self._pending) < self._most

    @property
    def is_full(self) -> bool:
        """Whether so many calls are unanswered that whoever adds to them should wait. Not so for a
        thread that serves others: what they wait for may be what would have to be answered."""
        if len(self._pending) < self._most or INHERITED.loop_of is not None:
            return False
        return not self.core.thread_pool.owns_current_thread()

    def wait_for_fewer(self, pending: Pending) -> None:
        """Waits while too many calls are unanswered. Raises as `wait_for_turn` does."""
        pause = threading.Event()
        while self.is_full:
            self.attend()
            self._look(pending, _NO_ANSWER)
            pause.wait(_FEWER_SECONDS)

    def wait_for_turn(self, pending: Pending) -> None:
        """Waits while the peer is behind, before a request is made for it; where nobody waits for
        the answer now, not for one that stands still. Raises `RpcTimeoutError`, or why the channel
        has ended."""
        with self.core.thread_pool.blocked():
            while self.is_behind and not (pending.future is not None and self._may_add()):
                self._look(pending, _STANDS_STILL)
                self._wait_until_clear(_LOOK_SECONDS)

    def _look(self, pending: Pending, what: str) -> None:
        """Raises the error because of which `pending` need not be waited for, if there is one."""
        if self.error is not None:
            raise copy_of(self.error)
        if pending.deadline is not None and pending.deadline <= self.core.clock.now():
            raise self._timeout(pending, what)

    def _wait_for_room(self, pending: Pending) -> None:
        """Waits while too much is under way. Raises `RpcTimeoutError` or why it ended."""

        def look() -> None:
            self.attend()
            self._look(pending, _NO_ANSWER)

        if self.flow_control.fits(pending.nbytes):
            self.flow_control.add(pending.nbytes, look)
            return
        nbytes, pending.nbytes = pending.nbytes, 0
        self.attend()
        with self.core.thread_pool.blocked():
            self.flow_control.add(nbytes, look)
        pending.nbytes = nbytes

    def _take_out(self, number: int) -> Pending | None:
        """Forgets a request, which waits for its answer no more; returns it, if it did."""
        pending = self._pending.pop(number, None)
        if pending is not None and pending.nbytes:
            self.flow_control.remove(pending.nbytes)
        return pending

    def wait(self, pending: Pending) -> None:
        """Blocks until `pending` is done."""
        with pending.sleeping() as lock:
            if not pending.done:
                with self.core.thread_pool.blocked():
                    lock.acquire()

    def ask(self, message: Heartbeat) -> None:
        """Sends a heartbeat, and sees to it that the answer is read. Raises `PeerDiedError`."""
        self.transmit(message)

    def signs_of_life(self) -> tuple[object, ...]:
        """Values that differ from those of before if the peer has done something since."""
        return ()

    def expect_answers(self) -> None:
        """Sees to it that answers are read in the end, also where no thread waits for them."""

    def attend(self) -> None:
        """Sees to it that answers are read as soon as they come."""

    def listen_for_pushes(self) -> PushListener | None:
        """Begins to listen here (`runtime.reply_side_push`); None where that cannot be."""
        return None

    def abandon(self, number: int) -> None:
        """Nobody wants this answer any more; should it come, what it carries is given back.
        Harmless when repeated."""
        if number in self._pending:
            self._given_up.add(number)
            if self._take_out(number) is None:  # it has just been answered
                self._given_up.discard(number)
        if number in self._given_up:
            self.expect_answers()

    def deliver(self, message: Message, reader: Pending | None = None) -> None:
        """Takes an answer to whoever waits for it; a late one is dropped. `reader` is what the
        reading thread itself waits for. After an interrupt the same answer may be delivered again.
        """
        if type(message) is not Reply and type(message) is not Failure:
            if type(message) is Alive:
                self._is_asking = False
            self._answers.handle(self.peer.worker, message)
            return
        number = message.request
        pending = self._pending.get(number)
        if pending is None:
            self._given_up.discard(number)
            if number != self._last_delivered:
                self._answers.discard(message.body, self.peer.worker)
            return
        if pending.done:
            pending.wake()
        elif pending.future is None:
            pending.finish(message, None)
        else:
            self._answers.complete_future(
                pending, message, self.peer.worker, is_waiting=pending is reader
            )
        pending.delivered = True
        self._last_delivered = number
        if self._pending.pop(number, None) is None:
            if number in self._given_up:  # meanwhile, by whoever has waited
                self._given_up.discard(number)
                self._answers.discard(message.body, self.peer.worker)
        elif pending.nbytes:
            self.flow_control.remove(pending.nbytes)
        if not self._pending and not self.listeners:
            self.is_urgent = False

    def sweep(self, now: float) -> float | None:
        """Ends the requests whose time is over; returns the earliest deadline that remains."""
        earliest: float | None = None
        for number, pending in self._pending.copy().items():
            deadline = pending.deadline
            if deadline is None:
                continue
            if deadline <= now:
                self.expire(number, pending)
            elif earliest is None or deadline < earliest:
                earliest = deadline
        return earliest

    def cancel(self, pending: Pending, error: RpcError) -> None:
        """The caller wants no answer any more: the request ends in `error`, and the callee is
        told."""
        for number, other in self._pending.copy().items():
            if other is pending:
                self._answers.fail_pending(pending, error)
                self._give_up(number, pending, tells_callee=True)

    def limit(self, pending: Pending, timeout_seconds: float) -> None:
        """From now on the answer must come within `timeout_seconds`. For the thread that is about
        to wait for it."""
        deadline = self.core.clock.now() + timeout_seconds
        if pending.deadline is None or deadline < pending.deadline:
            pending.timeout, pending.deadline = timeout_seconds, deadline
            if deadline < self.core.deadlines.next:
                self.core.deadlines.announce(deadline)

    def expire(self, number: int, pending: Pending) -> None:
        """The time of this request is over."""
        if number in self._pending:
            what = _STANDS_STILL if self.is_behind else _NO_ANSWER
            asked = None if self.is_behind else self.peer.worker
            self._answers.fail_pending(pending, self._timeout(pending, what), asked)
            self._give_up(number, pending)

    def _give_up(self, number: int, pending: Pending, *, tells_callee: bool = False) -> None:
        """Nobody waits any more for this request, which has left, or will."""
        self.abandon(number)
        if tells_callee or pending.travels is not None:
            self._unwanted.append(Cancel(number))
            if not self._cancelling.locked():
                self.core.spawn(self._cancel)

    def _leave_unwanted(
        self,
        pending: Pending,
        kept: list[object] | None,
        build: Callable[[int, float | None], Message],
    ) -> None:
        """An interrupt has struck while a request was sent, and nobody can tell whether it has
        left. So it leaves once more, after the word that nobody wants its answer: if it was there
        already it is not served again, else not at all. Either way what it brings is received, and
        it is answered."""
        number = pending.number
        request = build(number, pending.travels) if kept else Call(number, *_EMPTY_CALL)
        if isinstance(request, (Call, RemoteCall)) and request.definition is not None:
            # By now the number that it gave its function may be another one's.
            request = dataclasses.replace(request, function=-1)
        self.abandon(number)
        self._unwanted.extend((Cancel(number), request))
        self.core.spawn(self._cancel)

    def _timeout(self, pending: Pending, what: str) -> RpcTimeoutError:
        return timeout_of(pending, self.peer, what)

    def _cancel(self) -> None:
        """The callee need not begin what nobody waits for any more. One thread tells it so."""
        while self._unwanted and self._cancelling.acquire(blocking=False):
            try:
                while self._unwanted:
                    self._tell_unwanted(self._unwanted.popleft())
            finally:
                self._cancelling.release()

    def _tell_unwanted(self, message: Message) -> None:
        try:
            self.post(message)
        except LockstitchError as error:
            self.core.note("request.untold", f"{self!r}: {error}")
            if self.error is not None:
                self._unwanted.clear()

    def fail_all(self, error: RpcError) -> None:
        """Nothing will be answered here any more. Many threads may find out at once: one does the
        work, which leaves nothing to the others."""
        self.error = error
        try:
            if_free(self._failing, self._fail_pending, error)
        except Exception:
            raise
        except BaseException:  # an interrupt: nobody shall wait on for ever
            elsewhere(self.fail_all, (error,))
            raise

    def _fail_pending(self, error: RpcError) -> None:
        while self._pending:
            for number in list(self._pending):
                pending = self._pending.get(number)
                if pending is not None:
                    self._answers.fail_pending(pending, copy_of(error))
                    self._take_out(number)

    def end(self, error: PeerDiedError, *, at_once: bool = False) -> None:
        """The peer is gone, as something else has shown. What it has answered just before still
        counts, unless this is to be `at_once`."""
        del at_once
        self.fail_all(error)
        self.close()

    def close(self) -> None:
        """Ends the channel; harmless when repeated."""
