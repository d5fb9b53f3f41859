"""The connection on which we call a peer: our requests go out, its replies come in, and, while we
listen for it, what it pushes (`runtime.reply_side_push`); in the end its goodbye.

The thread that waits for a reply may read the connection itself, and gets its own answer without
anybody being woken. Which thread that is, and who reads while nobody waits, is decided in
`runtime.next_reader`. A thread that waits here never runs anybody's function.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from lockstitch.errors import copy_of
from lockstitch.imports import IMPORTS
from lockstitch.interrupts import elsewhere, if_free
from lockstitch.memory.waiting import DurationEstimate
from lockstitch.runtime.channel import Channel
from lockstitch.runtime.pending import Pending
from lockstitch.runtime.reading_right import ReadingRight
from lockstitch.runtime.reply_side_push import PushListener
from lockstitch.runtime.sending import STILL_SECONDS, Sending
from lockstitch.transport.placement import Placement
from lockstitch.transport.spin import Spinner
from lockstitch.transport.stream import StreamConnection
from lockstitch.transport.waker import Waker
from lockstitch.wire.encoding import encode
from lockstitch.wire.messages import CALLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.errors import PeerDiedError, RpcError
    from lockstitch.ids import WorkerInfo
    from lockstitch.runtime.channel import AnswerSink
    from lockstitch.runtime.core import Core
    from lockstitch.transport.base import Connection, RemainingTime
    from lockstitch.wire.decoding import FrameDecoder
    from lockstitch.wire.messages import Heartbeat, Message

# A reader blocks for at most this long before it looks at its deadline: always the same number,
# since changing a socket's timeout costs as much as sending a message.
_READ_SECONDS = 1.0
_LAST_ANSWERS_SECONDS = 0.5
_NEW_SECONDS = 5e-3


class Judge(Protocol):
    """Who finds out what it means that a connection has ended; `Peers` does."""

    def channel_broke(self, channel: StreamChannel, cause: BaseException) -> None:
        """The connection of a channel has ended; harmless when repeated."""
        ...

    def verdict(self, channel: StreamChannel) -> RpcError:
        """What has become of a broken channel; waits until that is known."""
        ...


class StreamChannel(Channel):
    """Requests to a worker over a connection; a source of the thread pool."""

    def __init__(
        self,
        core: Core,
        peer: WorkerInfo,
        answers: AnswerSink,
        judge: Judge,
        connection: Connection,
        decoder: FrameDecoder,
    ) -> None:
        super().__init__(core, peer, answers)
        self._judge = judge
        self.connection = connection
        self.decoder = decoder
        self._lend = connection.lend
        self._is_authenticated = decoder.is_authenticated
        self._sending = Sending(connection, core.spawn, self._lost, core.options.bytes_in_flight)
        self.is_closed = False
        self._right = ReadingRight(core.thread_pool, connection, self)
        self._spinner = Spinner(self._is_wanted_elsewhere, placement=Placement(moves=True))
        self._listening = DurationEstimate()
        self._waker: Waker | None = None
        core.thread_pool.watch(connection, self)
        core.thread_pool.watch_end(connection)

    def __repr__(self) -> str:
        return f"<StreamChannel to {self.peer.name!r} · {self.outstanding} outstanding>"

    def transmit(self, message: Message, remaining_time: RemainingTime | None = None) -> None:
        device_map = self.device_map
        if device_map is not None and type(message) not in CALLS:
            device_map = None
        buffers = encode(message, self.core.limits, self._lend, self._is_authenticated, device_map)
        try:
            self._sending.send(buffers, remaining_time)
        except ConnectionError as error:
            self._right.read_if_free(self._read_what_is_there)  # answers; or that it leaves
            self._lost(error)
            raise self._judge.verdict(self) from error

    def ask(self, message: Heartbeat) -> None:
        self._is_asking = True
        self.post(message)
        self._right.demand()

    def signs_of_life(self) -> tuple[object, ...]:
        return (*self.decoder.position, self._last_delivered, *self.connection.signs_of_life())

    def say_at_last(self, message: Message, timeout_seconds: float) -> None:
        """Sends a message, or does not where the peer takes in nothing any more."""
        last = encode(message, self.core.limits, None, self._is_authenticated)
        self._sending.say_at_last(last, timeout_seconds)

    @property
    def is_behind(self) -> bool:
        return self._sending.is_behind

    @property
    def is_free(self) -> bool:
        return not self._sending.is_behind and len(self._pending) < self._most

    def _seconds_to_still(self, pending: Pending) -> float:
        if pending.stillness is None:
            pending.stillness = self._sending.stillness()
        return STILL_SECONDS - pending.stillness.seconds()

    def _may_add(self) -> bool:
        return self._sending.may_add()

    def _wait_until_clear(self, seconds: float) -> None:
        self._sending.wait_until_clear(seconds)

    def wait(self, pending: Pending) -> None:
        pool = self.core.thread_pool
        if IMPORTS.under_way or pool.owns_current_thread():
            with pool.blocked():
                self._wait(pending)
        else:
            self._wait(pending)

    def _wait(self, pending: Pending) -> None:
        right = self._right
        reading, followers = right.lock, right.followers
        self.core.thread_pool.latest_wait = pending.since
        try:
            while not pending.done:
                has_read = if_free(reading, self._read_until, pending)
                if self.is_closed and not pending.done:  # it is still to be seen what that means
                    super().wait(pending)
                elif (pending.delivered or not has_read) and not pending.done:
                    right.follow(pending)
        finally:
            try:
                if followers or self.is_expecting():
                    right.pass_on()
            except BaseException:  # an interrupt: others must not sleep on for ever
                elsewhere(right.pass_on, ())
                raise

    def listen_for_pushes(self) -> PushListener:
        self.listeners += 1
        self.expect_answers()
        return PushListener(self)

    def stop_listening(self) -> None:
        """Notes that one listener less expects messages."""
        self.listeners -= 1

    def wait_shared(self, sleeper: Pending) -> None:
        """Reads until `sleeper`, which is shared, is finished by what comes or by another thread;
        see `PushListener.wait`."""
        number = next(self._numbers)  # nobody will answer it; the peer's end finishes it
        sleeper.since = self.core.clock.now()
        if sleeper.estimate is None:
            sleeper.estimate = self._listening
        self._pending[number] = sleeper
        try:
            if self.error is not None:
                raise copy_of(self.error)  # what is raised keeps the frames that it passes
            if isinstance(self.connection, StreamConnection):
                self.wait(sleeper)
            else:  # its readers cannot be woken, and others may finish the sleeper too
                self.attend()
                super().wait(sleeper)
        finally:
            self._pending.pop(number, None)

    def read_shared(self, others: Sequence[StreamChannel], sleeper: Pending) -> None:
        """See `PushListener.wait_with`."""
        _read_with((self, *others), (), sleeper)

    def spin_shared(self, sleeper: Pending) -> None:
        """See `PushListener.spin_wait`."""
        self._right.read_if_free(self._spin_until, sleeper)

    def _spin_until(self, sleeper: Pending) -> None:
        with contextlib.suppress(BlockingIOError):
            while not sleeper.done:
                if not self._is_received():
                    self._spin(self._listening)
                self._receive_and_take(sleeper, 0)

    def _is_wanted_elsewhere(self) -> bool:
        """Whether other threads of this process have something to do before more comes here."""
        return len(self._right.followers) > 0 or self.core.thread_pool.has_more()

    def _spin(self, estimate: DurationEstimate | None) -> bool:
        decoder = self.decoder
        try:
            return self._spinner.receive(self.connection, decoder.space(), decoder.counts, estimate)
        except ConnectionError as error:
            self._lost(error)
            return False

    def expect_answers(self) -> None:
        self._right.expect()

    def attend(self) -> None:
        self.is_urgent = True
        self._right.demand()

    def is_expecting(self) -> bool:
        """Whether something is to come: answers, also those that nobody wants any more, or what the
        peer pushes."""
        return bool(self._pending or self._given_up or self.listeners or self._is_asking)

    def has_new_caller(self) -> bool:
        """Whether a thread of this process has waited for the answer to a call of a moment ago."""
        return self.core.thread_pool.latest_wait > self.core.clock.now() - _NEW_SECONDS

    def is_left_over(self) -> bool:
        """Whether something is there that the poller would not tell of."""
        return self._is_received() or self.connection.has_left_over()

    def _read_until(self, pending: Pending) -> None:
        if pending.done or pending.delivered:
            return  # another reader had it already, before this one began to read
        decoder = self.decoder
        # What comes first may be for somebody else; the next is worth the same.
        while (  # has something been received (`_is_received`), or does it come soon?
            decoder.counts or decoder.messages or decoder.is_torn or self._spin(pending.estimate)
        ):
            if self._take(pending):
                return
        if pending.is_shared and isinstance(self.connection, StreamConnection):
            self._read_wakefully(pending, self.connection)
            return
        callers = self.core.thread_pool.callers
        while not pending.done:
            seconds = _READ_SECONDS
            if pending.deadline is not None:
                remaining = pending.deadline - self.core.clock.now()
                if remaining <= 0:
                    self._expire(pending)
                    return
                seconds = min(seconds, remaining)
            try:
                callers.add(pending)
                if self._receive_and_take(pending, seconds):
                    return
            except BlockingIOError:
                continue
            finally:
                callers.discard(pending)

    def _read_wakefully(self, sleeper: Pending, connection: StreamConnection) -> None:
        """Reads until `sleeper` is done, which others may do too: then they wake this reader."""
        while not sleeper.done:
            if not self._is_received() and not self._spin(sleeper.estimate):
                self._sleep_wakefully(sleeper, connection)
            with contextlib.suppress(BlockingIOError):
                if self._receive_and_take(sleeper, 0):
                    return

    def _sleep_wakefully(
        self, sleeper: Pending, connection: StreamConnection, *others: StreamConnection
    ) -> None:
        """Sleeps until `sleeper` is done, or something comes over one of the connections."""
        waker = self._waker
        if waker is None:
            waker = self._waker = Waker()
        try:
            sleeper.locks.append(waker)
            if not sleeper.done:
                connection.wait_readable(waker, others)
        finally:
            with contextlib.suppress(ValueError):  # an interrupt came before
                sleeper.locks.remove(waker)
        waker.drain()

    def _take_all(self, sleeper: Pending) -> None:
        """Delivers what is there already."""
        with contextlib.suppress(BlockingIOError):
            while not sleeper.done and not self.is_closed:
                self._receive_and_take(sleeper, 0)

    def _is_received(self) -> bool:
        """Whether something has been received, but not delivered yet."""
        decoder = self.decoder
        return bool(decoder.counts or decoder.is_torn or decoder.messages)

    def _receive_and_take(self, pending: Pending, seconds: float | None) -> bool:
        try:
            decoder = self.decoder
            if not self._is_received():  # by an interrupted reader
                self.connection.receive_into(decoder.space(), decoder.counts, seconds)
                self._spinner.note_arrival()
        except BlockingIOError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing can be read after it
            self._lost(error)
            return True
        return self._take(pending)

    def _take(self, pending: Pending) -> bool:
        """Delivers what has been received; whether `pending` was among it, or can be no more."""
        try:
            decoder = self.decoder
            if 0 in decoder.counts:
                raise ConnectionResetError("it closed the connection")
            decoder.absorb()
            messages = decoder.messages
            while messages:
                self.deliver(messages[0], pending)
                messages.popleft()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing can be read after it
            self._lost(error)
            return True
        return pending.done or pending.delivered

    def _read_what_is_there(self) -> None:
        nobody = Pending(None, None, None)
        with contextlib.suppress(BlockingIOError):
            while not nobody.done and not self._receive_and_take(nobody, 0):
                pass

    def _expire(self, pending: Pending) -> None:
        for number, other in self._pending.copy().items():
            if other is pending:
                self.expire(number, pending)

    def _lost(self, cause: BaseException) -> None:
        # All of it again if it was done before: an interrupt may have cut that short.
        self.close()
        self._judge.channel_broke(self, cause)
        if self.error is not None:
            self.fail_all(self.error)

    # ------------------------------------------------------------ as a source of the pool

    def serve(self) -> None:
        """The pool's reader reads the answers of futures, or finds that the peer is gone."""
        right = self._right
        right.note_told()
        # Not by `read_if_free`: a future's callback waits for this, and no interrupt comes here.
        if right.lock.acquire(blocking=False):
            try:
                self._read_what_is_there()
            finally:
                right.lock.release()
                right.pass_on()
        if not self.is_closed:
            right.watch_end()

    def leave(self) -> None:
        """The reader never leaves in the middle of `serve`."""

    def end(self, error: PeerDiedError, *, at_once: bool = False) -> None:
        # It may have answered just before: whoever reads finds that first, and then the end of the
        # connection. Should that not come, all is over a moment later.
        self.error = error
        if self._pending and not at_once:
            self.attend()
            self.core.call_later(_LAST_ANSWERS_SECONDS, partial(self._end_now, error))
        else:
            self._end_now(error)

    def _end_now(self, error: PeerDiedError) -> None:
        self.fail_all(error)
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self.core.thread_pool.forget(self.connection)
        self.connection.close()
        if self._waker is not None:
            self._waker.close()


def _read_with(
    channels: tuple[StreamChannel, ...], held: tuple[StreamChannel, ...], sleeper: Pending
) -> None:
    """Reads until `sleeper` is done: those that are `held`, which is the right to read them, and
    all further `channels` that nobody else reads now."""
    if not channels:
        return _read_all(held, sleeper)
    first, rest = channels[0], channels[1:]
    if isinstance(first.connection, StreamConnection) and first._right.read_if_free(
        _read_with, rest, (*held, first), sleeper
    ):
        return
    first.attend()
    _read_with(rest, held, sleeper)


def _read_all(held: tuple[StreamChannel, ...], sleeper: Pending) -> None:
    """Reads several at once; returns when `sleeper` is done, or all of them have ended."""
    while True:
        for channel in held:
            channel._take_all(sleeper)
        held = tuple([channel for channel in held if not channel.is_closed])
        if sleeper.done or not held:
            return
        first, *others = [cast("StreamConnection", channel.connection) for channel in held]
        held[0]._sleep_wakefully(sleeper, first, *others)
