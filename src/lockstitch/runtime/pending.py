"""Calls that wait for their answer, and the future that `rpc_async` returns.

A `Pending` is what an answer completes. A thread that waits for it either reads the connection
itself or sleeps on a lock; see `Channel.wait`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from lockstitch.devices.streams import use_here
from lockstitch.errors import CallCancelledError, RpcError, copy_of, without_traceback
from lockstitch.imports import IMPORTS
from lockstitch.modes import are_plain, plain_modes
from lockstitch.runtime import callbacks
from lockstitch.runtime.inherited import refuse_to_block
from lockstitch.torch_internals.calls import add_done_callback, set_unwrap_function
from lockstitch.wire.encodings import TakeBack

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from lockstitch.memory.waiting import DurationEstimate
    from lockstitch.runtime.sending import Stillness
    from lockstitch.transport.waker import Waker
    from lockstitch.wire.messages import Message

T = TypeVar("T")


class Answering(Protocol):
    """Where an answer will come in, as far as whoever wants it must know; a `Channel` is one."""

    def wait(self, pending: Pending) -> None:
        """Blocks until `pending` is done, reading what comes if nobody else does."""
        ...

    def attend(self) -> None:
        """Sees to it that answers are read as soon as they come."""
        ...

    def cancel(self, pending: Pending, error: RpcError) -> None:
        """The caller wants no answer to `pending` any more."""
        ...

    def limit(self, pending: Pending, timeout_seconds: float) -> None:
        """From now on the answer to `pending` must come within that time."""
        ...


class Completion(Protocol):
    """What the answer to a request completes, where no thread waits for it; a `Future` is one."""

    settled_by: int
    """The thread that reads and completes it now, having found no callbacks; 0: none."""

    @property
    def has_callbacks(self) -> bool:
        """Whether completing it runs users' functions."""
        ...

    def attach(self, channel: Answering, pending: Pending) -> None:
        """The answer to `pending` will come over `channel`."""
        ...

    def complete(self, value: Any, error: BaseException | None) -> None:
        """The answer is there. It may be told more than once; the first time counts."""
        ...


class Pending:
    """One request without an answer yet. `deadline` is a time of the worker's clock, `timeout` the
    seconds that led to it; `travels` is the timeout to be sent along, because a user gave it.
    `what` is the function called, or else a word, and `since` the time of the call."""

    # Most never get another value, and then cost nothing.
    future: Completion | None = None
    timeout: float | None = None
    travels: float | None = None
    what: object = None
    answer: Message | None = None
    error: BaseException | None = None
    delivered = False
    """The answer has been taken from the connection, and somebody decodes it."""
    done = False
    estimate: DurationEstimate | None = None
    """How long such requests usually wait for their answer."""
    nbytes = 0
    """The size of the tensors that the request holds, as long as it counts for flow control."""
    stillness: Stillness | None = None
    """While its request cannot leave: for how long the peer has taken in nothing."""
    kept: list[object] | None = None
    """What the callee relies on until it has answered."""
    records = True
    """The call was made where torch records graphs; matters for calls in a context only."""
    number = 0
    """That of the request, once it has one."""
    sent = 0
    """The size of the values that the request brings, while somebody looks on."""
    peer = ""
    """Whose answer it is, where no thread waits for it."""
    is_shared = False
    """Others than readers of the connection may finish it."""

    def __init__(
        self,
        deadline: float | None,
        timeout: float | None,
        future: Completion | None,
        since: float = 0.0,
        travels: float | None = None,
    ) -> None:
        self.deadline = deadline
        self.since = since
        self.locks: list[threading.Lock | Waker] = []
        if timeout is not None:
            self.timeout = timeout
        if travels is not None:
            self.travels = travels
        if future is not None:
            self.future = future

    def finish(self, answer: Message | None, error: BaseException | None) -> None:
        """Completes it. Whoever waits is woken; what it then finds it decodes itself. Harmless when
        repeated, as it is by whoever goes on after an interrupted reader."""
        self.answer = answer
        self.error = error
        self.done = True
        if self.locks:
            self.wake()

    def take_back(self, error: BaseException) -> None:
        """The request was not sent because of `error`: what its making has begun is taken back.
        (Where the peer is lost, that has been seen to.)"""
        if not isinstance(error, (RpcError, ConnectionError)):
            for each in self.kept or ():
                if isinstance(each, TakeBack):
                    each()

    def wake(self) -> None:
        """Wakes the threads that wait."""
        for lock in tuple(self.locks):
            with contextlib.suppress(RuntimeError):  # it is awake already
                lock.release()

    @contextlib.contextmanager
    def sleeping(self) -> Iterator[threading.Lock]:
        """A lock that `wake` releases. Look at `done` once more before sleeping on it."""
        lock = threading.Lock()
        lock.acquire()
        try:
            self.locks.append(lock)
            yield lock
        finally:
            with contextlib.suppress(ValueError):  # an interrupt came before it was appended
                self.locks.remove(lock)


def _unwrap(result: Any) -> Any:
    if isinstance(result, BaseException):
        raise copy_of(result)
    return result


class Future(torch.futures.Future[T]):
    """The result of an asynchronous call: a `torch.futures.Future` that can also be awaited, and
    whose `wait` ends at Ctrl-C.

    It is completed by whoever reads the answer: the thread that waits for it, or else one of the
    pool, at once if somebody wants to be called back. An exception keeps its type.
    """

    _channel: Answering | None = None
    _pending: Pending | None = None
    has_callbacks = False
    settled_by = 0
    landed: Sequence[Any] = ()
    """The tensors of the result that were brought to an accelerator."""

    def complete(self, value: T | None, error: BaseException | None) -> None:
        """Sets the result, or the exception; if it is there already, the first one counts."""
        if super().done():
            return
        self._channel = self._pending = None
        if error is not None:
            # Not set_exception: a completed future would not survive that somebody tries it.
            set_unwrap_function(self, _unwrap)
            # The C++ side holds the error where no garbage collector looks: frames would never go.
            error = without_traceback(error)
        try:
            self.set_result(value if error is None else error)  # type: ignore[arg-type]
        except RuntimeError:
            if not super().done():
                raise

    def attach(self, channel: Answering, pending: Pending) -> None:
        """The answer to `pending` will come over `channel`: whoever waits may read it there."""
        self._channel, self._pending = channel, pending

    @property
    def channel(self) -> Answering | None:
        """Over which the answer will come; None where it has come, or comes in another way."""
        return self._channel

    @property
    def estimate(self) -> DurationEstimate | None:
        """How long such answers are usually waited for, where that is known."""
        pending = self._pending
        return None if pending is None else pending.estimate

    def attend(self) -> None:
        """Has the answer read as soon as it comes, although no thread waits for it."""
        channel = self._channel
        if channel is not None:
            channel.attend()

    def done(self) -> bool:
        """Whether the result is there."""
        if super().done():
            return True
        self.attend()  # who asks will ask again
        return False

    def cancel(self) -> bool:
        """Gives the call up; returns False where the result is there already.

        Waiting then raises `CallCancelledError`. The callee is told: what it has not begun yet it
        does not begin, and an `async def` function is cancelled where it awaits. Another function
        that runs already goes on to its end, and its result is dropped.
        """
        channel, pending = self._channel, self._pending
        if super().done() or channel is None or pending is None:
            return False
        channel.cancel(pending, CallCancelledError("the call was cancelled by its caller"))
        return True

    def limit(self, timeout_seconds: float) -> None:
        """From now on the result must come within `timeout_seconds`, or it is an
        `RpcTimeoutError`. For the thread that is about to wait for it."""
        channel, pending = self._channel, self._pending
        if channel is not None and pending is not None:
            channel.limit(pending, timeout_seconds)

    def wait(self) -> T:
        """Blocks until the result is there; returns it, or raises the call's exception."""
        if not super().done():
            refuse_to_block("waiting for a future")
            if not are_plain():  # this thread may read it
                with plain_modes():
                    return self.wait()
            channel, pending = self._channel, self._pending
            if channel is not None and pending is not None:
                channel.wait(pending)
            if not super().done():
                self._sleep()
        if self.landed:
            use_here(self.landed)
        return super().wait()

    def _sleep(self) -> None:
        # torch's own wait would hold back Ctrl-C until the result is there.
        done = threading.Event()
        super().add_done_callback(lambda _future: done.set())
        is_importing = IMPORTS.under_way and IMPORTS.suspend()
        try:
            done.wait()
        finally:
            if is_importing:
                IMPORTS.resume()

    def then(self, callback: Callable[[torch.futures.Future[T]], Any]) -> torch.futures.Future[Any]:
        """A future of what `callback(self)` returns; the callback runs when the result is there.

        What the callback raises, `wait` of the new future raises: a `RuntimeError` as it is, and
        anything else as the cause of a `CallbackError`. Raises `TypeError` for what cannot be
        called.
        """
        if not callbacks.can_be_called(callback):
            return super().then(callback)  # raises, in torch's words
        new: Future[Any] = Future()

        def run(done: torch.futures.Future[T]) -> None:
            try:
                value = callback(done)
            except BaseException as error:  # noqa: BLE001 - raised where the new future is waited for
                new.complete(None, callbacks.error_of(callback, error))
            else:
                new.complete(value, None)

        self._announce_callback()
        super().add_done_callback(run)
        return new

    def add_done_callback(self, callback: Callable[[torch.futures.Future[T]], None]) -> None:
        """Has `callback(self)` called when the result is there, at once if it is; several in the
        order in which they were added.

        Nobody waits for a callback, so what it raises is printed and otherwise left alone. Raises
        `TypeError` for what cannot be called.
        """
        self._announce_callback()
        guarded = (
            partial(callbacks.call, callback) if callbacks.can_be_called(callback) else callback
        )
        super().add_done_callback(guarded)

    def _announce_callback(self) -> None:
        """A thread that reads runs no callbacks: what they wait for it could not read. It may have
        looked for them just before this one came; then it is done in a moment."""
        self.has_callbacks = True
        self.attend()
        if self.settled_by not in (0, threading.get_ident()):
            self._sleep()

    def add_inner_callback(self, callback: Callable[[torch.futures.Future[T]], None]) -> None:
        """Has `callback` called by whoever completes it, be it a thread that reads: it must be
        short, not block, and run no user code. The answer may be read a moment later."""
        add_done_callback(self, callback)

    def __await__(self) -> Generator[Any, None, T]:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def wake(_future: object) -> None:
            loop.call_soon_threadsafe(lambda: None if ready.done() else ready.set_result(None))

        self.add_done_callback(wake)
        try:
            yield from ready
        except asyncio.CancelledError:
            self.cancel()
            raise
        return super().wait()
