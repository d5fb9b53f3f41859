"""One request being served: unpickled, run under the caller's context, answered.

A request is *parked*, and holds no thread, while references among its arguments wait for their
owner's confirmation, while the future of an `async_execution` function is open, and while an
`async def` function runs on the worker's event loop.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
from asyncio import CancelledError
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from lockstitch.attach.recorder import RECORDER
from lockstitch.devices.streams import side_streams, wait_for
from lockstitch.errors import (
    CallbackError,
    CallCancelledError,
    LocalProtocolError,
    LockstitchError,
    add_note,
)
from lockstitch.runtime import operators, remote_errors
from lockstitch.runtime.inherited import inherited_deadline
from lockstitch.runtime.packing import item_bytes, payload_bytes
from lockstitch.torch_internals.calls import PlainFuture
from lockstitch.wire.encodings import CARRY_OWN, PICKLE, UnpickleSession
from lockstitch.wire.messages import Failure, Fetch, Payload, RemoteCall, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from lockstitch.attach.recorder import Noted
    from lockstitch.devices.streams import Event
    from lockstitch.ids import WorkerId, WorkerInfo
    from lockstitch.runtime.duplicate_filter import DuplicateFilter
    from lockstitch.runtime.event_loop import Running
    from lockstitch.runtime.functions import KnownFunction
    from lockstitch.runtime.serving import Serving
    from lockstitch.wire.messages import Message, Stitch


class Completing(Protocol):
    """What will hold a value, or raise an error: a `torch.futures.Future`, or an `Outcome`."""

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        """Calls `callback(self)` once it holds it."""
        ...

    def value(self) -> Any:
        """The value."""
        ...


class Deferred:
    """What a function may return to say: the answer is what this future will hold. Where it
    `answers_here`, the thread that completes the future sends the answer, before it goes on."""

    __slots__ = ("answers_here", "future")

    def __init__(self, future: Completing, *, answers_here: bool = False) -> None:
        self.future = future
        self.answers_here = answers_here


class Asker(Protocol):
    """Where a request has come from, and its answer goes to."""

    peer: WorkerInfo
    duplicates: DuplicateFilter

    def reply(self, message: Message) -> None:
        """Sends the answer. Raises `ConnectionError` when the peer is gone."""
        ...


class Invocation:
    """See the module. Exactly one of `reply` and `fail` is called in the end. For one that is
    recorded see `runtime.observing`."""

    __slots__ = (
        "_core",
        "_coroutine",
        "_requests",
        "_serving",
        "caller",
        "expires",
        "is_parked",
        "known",
        "message",
        "since",
        "stitch",
        "tensor_bytes",
        "thread",
    )

    def __init__(
        self, serving: Serving, requests: Asker, message: Message, known: KnownFunction
    ) -> None:
        self._serving = serving
        self._core = serving.core
        self._requests = requests
        self.message = message
        self.known = known
        self.caller: WorkerId = requests.peer.worker
        self.stitch: Stitch | None = message.stitch  # type: ignore[attr-defined]
        timeout: float | None = message.timeout  # type: ignore[attr-defined]
        self.since = serving.core.now()
        self.expires = None if timeout is None else self.since + timeout
        self.thread: int | None = None
        self.is_parked = False
        self.tensor_bytes = 0
        self._coroutine: Running | None = None

    def __repr__(self) -> str:
        return f"<Invocation of {self.what} for {self.caller_name!r}>"

    @property
    def what(self) -> str:
        """The function's name."""
        return self.known.qualified or "a function by value"

    @property
    def caller_name(self) -> str:
        """The caller's name."""
        return self._requests.peer.name

    # ------------------------------------------------------------ serving

    def serve(self) -> None:
        """Serves the request on this thread, and notes whether that was quick."""
        if self.expires is not None and self._is_given_up(self.expires):
            self.discard()
            return  # the caller has given up
        started = perf_counter()
        server = self._serving.servers.get(type(self.message))
        try:
            if server is None:
                self.run(self.answer)
            else:
                server(self)
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self.fail(error)
        self.known.note(perf_counter() - started)

    def refuse(self) -> None:
        """Answers a request that its caller had given up before it came; what it brings is given
        back."""
        self.discard()
        self.fail(CallCancelledError("the call was given up by its caller before it came"))

    def discard(self) -> None:
        """Gives back what a request brings that is not served."""
        body = getattr(self.message, "body", None)
        if body is not None:
            self._serving.values.discard(body, self.caller)

    def _is_given_up(self, expires: float) -> bool:
        """Whether the caller's time is over. What was to stay here is still made: others may have
        been told of it."""
        if type(self.message) is RemoteCall:
            return False
        number: int = self.message.request  # type: ignore[attr-defined]
        is_given_up = self._requests.duplicates.is_given_up(number)
        return is_given_up or self._core.now() >= expires

    def run(self, then: Callable[[Any, BaseException | None], None]) -> None:
        """Runs the user's function and then `then(value, error)`, sooner or later, on some thread
        of the pool, within `scope`."""
        self._serving.running.begin(self)
        body: Payload = self.message.body  # type: ignore[attr-defined]
        session = UnpickleSession(self.caller) if body.encoding in CARRY_OWN else None
        try:
            call = [self.arguments(session)]
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self._serving.values.discard(body, self.caller)
            add_note(error, f"on reading a call of {self.what}, which has not run")
            self._conclude(then, None, error)
            return
        if session is not None and session.received:
            unconfirmed = [each for each in session.received if not each.is_confirmed()]
            if unconfirmed:
                self._park(unconfirmed, lambda: self._execute(call, then))
                return
        self._execute(call, then)

    def arguments(
        self, session: UnpickleSession | None = None
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The function and its arguments; received tensors are stitched onto the graph."""
        message = self.message
        body: Payload = message.body  # type: ignore[attr-defined]
        if body.items:
            if RECORDER.is_on:
                self.tensor_bytes = sum(map(item_bytes, body.items))
            if self.stitch is None:
                self._serving.values.note_unstitched(body.items, self._origin)
        value = self._serving.values.unpack_from(body, self.stitch, self.caller, session)
        if type(body.items) is list:
            body.items.clear()  # nobody but the function shall keep them
        if message.function == 0:  # type: ignore[attr-defined]
            function, args, kwargs = value
            if self._core.allowed is not None:
                self._core.allowed.check_callee(function)
            return function, args, kwargs
        function = self.known.function or self.known.resolved(self._core.allowed)
        if body.encoding == PICKLE:
            args, kwargs = value
            return function, args, kwargs
        return function, value, {}

    def _origin(self) -> str:
        return f"worker {self.caller_name!r} has sent with a call of {self.what}"

    def park(self) -> None:
        """From here on the request holds no thread, and may be dropped when its caller is lost."""
        self.is_parked = True
        if self._serving.is_lost(self.caller):  # it was just before
            self._serving.running.drop(self.caller)

    def abandon(self) -> None:
        """Nobody wants the answer any more: a coroutine is cancelled."""
        if self._coroutine is not None:
            self._coroutine.cancel()

    def _park(self, unconfirmed: list[Any], resume: Callable[[], None]) -> None:
        self.park()
        lock = threading.Lock()
        remaining = len(unconfirmed)

        def confirmed(_error: BaseException | None = None) -> None:
            nonlocal remaining
            with lock:
                remaining -= 1
                last = remaining == 0
            if last:
                self._core.thread_pool.submit(lambda: self._on_thread("serve", resume))

        for each in unconfirmed:
            each.when_confirmed(confirmed)

    def _execute(
        self,
        call: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]],
        then: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Runs the only entry of `call`, which it takes out: when the answer leaves, the memory of
        large arguments is back already, and its sender finds it warm."""
        function, args, kwargs = call.pop()
        self.thread = threading.get_ident()
        self.is_parked = False
        try:
            if self.expires is None and self.stitch is None:
                value = function(*args, **kwargs)
            else:
                with self.scope():
                    value = function(*args, **kwargs)
            if hasattr(function, "_wrapped_async_rpc_function"):
                value = _deferred(value, self.what)
            elif type(value) is CoroutineType:
                value = self._begin(value)
        except TypeError as error:
            self._raised(then, operators.explain(function, args, kwargs, error))
            return
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self._raised(then, error)
            return
        self.thread = None
        del args, kwargs
        if type(value) is Deferred:
            self.park()
            if self._coroutine is not None and self.is_unwanted():
                self._coroutine.cancel()
            answers_here = value.answers_here
            # Not `then`: the answer must keep its exception's type.
            value.future.add_done_callback(
                lambda future: self._settle(future, then, answers_here=answers_here)
            )
        else:
            self._conclude(then, value, None)

    def _begin(self, coroutine: CoroutineType[Any, Any, Any]) -> Deferred:
        """Has the worker's event loop run what an `async def` function returned."""
        with self.scope():
            self._coroutine = self._core.event_loop.run(coroutine, self.expires)
        return Deferred(self._coroutine)

    def coroutine_frames(self) -> list[FrameType]:
        """Returns where the coroutine is that serves this, the innermost frame first; nothing where
        none does."""
        return [] if self._coroutine is None else self._coroutine.frames()[::-1]

    def is_unwanted(self) -> bool:
        """Whether the caller has given the request up, so that it need not go on."""
        number: int = self.message.request  # type: ignore[attr-defined]
        is_given_up = self._requests.duplicates.is_given_up(number)
        return is_given_up and type(self.message) is not RemoteCall

    def _raised(
        self, then: Callable[[Any, BaseException | None], None], error: BaseException
    ) -> None:
        self._print(error)
        self._conclude(then, None, error)

    def _print(self, error: BaseException) -> None:
        is_ours = issubclass(type(error), LockstitchError)  # `isinstance` asks the error, too
        if not is_ours and not self._core.is_closed:
            _print_error(error, self._core.info.name)

    def _settle(
        self,
        future: Completing,
        then: Callable[[Any, BaseException | None], None],
        *,
        answers_here: bool,
    ) -> None:
        try:
            value, error = future.value(), None
        except CallbackError as raised:  # the caller gets what its function has raised, as ever
            cause = raised.__cause__
            value, error = None, raised if cause is None else cause
        except BaseException as raised:  # noqa: BLE001 - raised where the caller waits
            value, error = None, raised
            if self._coroutine is not None and not issubclass(type(raised), CancelledError):
                self._print(raised)
        if isinstance(value, BaseException):
            value, error = None, value
        begun = side_streams()
        if answers_here:
            self._conclude_after(begun, then, value, error)
        else:
            conclude = self._conclude_after
            self._core.thread_pool.spawn(partial(conclude, begun, then, value, error))
        del value, error  # whose frames, of which this is one, would keep it in a circle

    def _conclude_after(
        self,
        begun: list[Event],
        then: Callable[[Any, BaseException | None], None],
        value: Any,
        error: BaseException | None,
    ) -> None:
        wait_for(begun)
        self.conclude(then, value, error)

    def conclude(
        self,
        then: Callable[[Any, BaseException | None], None],
        value: Any,
        error: BaseException | None,
    ) -> None:
        """Runs `then(value, error)` within `scope`: with it the request has been served."""
        if self.is_parked:  # this holds a thread for it again
            self._on_thread("conclude", lambda: self._conclude(then, value, error))
        else:
            self._conclude(then, value, error)

    def _conclude(
        self,
        then: Callable[[Any, BaseException | None], None],
        value: Any,
        error: BaseException | None,
    ) -> None:
        try:
            if self.expires is None and self.stitch is None:
                then(value, error)
            else:
                with self.scope():
                    then(value, error)
        finally:
            self._serving.running.end(self)

    def _on_thread(self, kind: str, run: Callable[[], None]) -> None:
        """Runs a part of it that is a span of its own for who looks on, of that `kind`."""
        del kind
        run()

    def scope(self) -> AbstractContextManager[None]:
        """The caller's autograd context, and what remains of the timeout that its user gave."""
        stitch, interceptor = self.stitch, self._serving.values.interceptor
        if stitch is None or interceptor is None:
            return _UNBOUNDED if self.expires is None else inherited_deadline(self.expires)
        if self.expires is None:
            return interceptor.scope(stitch)
        return _both(interceptor.scope(stitch), inherited_deadline(self.expires))

    # ------------------------------------------------------------ answering

    def answer(self, value: Any, error: BaseException | None) -> None:
        """Answers with a value (`reply`) or with an error (`fail`)."""
        if error is None:
            self.reply(value)
        else:
            self.fail(error)

    def reply(self, value: Any) -> None:
        """Answers with `value`, within `scope`. A value that cannot cross fails the call."""
        number: int = self.message.request  # type: ignore[attr-defined]
        try:
            body, stitch = self._serving.values.pack_for(value, self.caller)
            self._send(Reply(number, stitch, body))
        except Exception as error:  # noqa: BLE001 - whatever a user's __reduce__ raises
            is_fetch = type(self.message) is Fetch
            what = "the value of a reference" if is_fetch else f"the result of {self.what}"
            self.fail(self._serving.values.refusal_of_value(error, value, what, self.caller_name))
        except BaseException as error:  # noqa: BLE001 - the same, where it wants to end the program
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Answers with an exception."""
        described = remote_errors.describe(error, self._core.info.name)
        try:
            self._send_failure(described)
        except LocalProtocolError:  # it is too long for a frame
            self._send_failure(remote_errors.shorten(described))

    def _send_failure(self, described: remote_errors.Described) -> None:
        number: int = self.message.request  # type: ignore[attr-defined]
        self._send(Failure(number, Payload(PICKLE, pickle.dumps(described, 5), ())))

    def _send(self, message: Reply | Failure) -> None:
        try:
            self._requests.reply(message)
        except ConnectionError:
            self._core.note("reply.undeliverable", repr(self))
        if RECORDER.counts:  # now that it has left
            seconds, sent = self._core.now() - self.since, payload_bytes(message.body)
            has_failed = type(message) is Failure
            RECORDER.count_call(self._noted(), seconds, sent, self._bytes_received(), has_failed)

    def _bytes_received(self) -> int:
        """The size of the values that the request has brought, if any."""
        body: Payload | None = getattr(self.message, "body", None)
        return 0 if body is None else len(body.stream) + self.tensor_bytes

    def _noted(self) -> Noted:
        noted = self.known.noted
        if noted is None:
            worker, caller = self._core.info.name, self._requests.peer.name
            noted = self.known.noted = RECORDER.noted("serve", self.what, worker, caller)
        return noted


_UNBOUNDED: Final[AbstractContextManager[None]] = contextlib.nullcontext()


@contextlib.contextmanager
def _both(
    outer: AbstractContextManager[None], inner: AbstractContextManager[None]
) -> Iterator[None]:
    with outer, inner:
        yield


def _deferred(value: Any, what: str) -> Deferred:
    if not isinstance(value, PlainFuture):
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future "
            f"object, but got {value!r} of type {type(value)} from {what}"
        )
    return Deferred(cast("Completing", value))


def _print_error(error: BaseException, worker: str) -> None:
    """Also the callee's operator should see it: nobody may be waiting for the answer."""
    text = remote_errors.story_of(error)
    with contextlib.suppress(OSError, ValueError):  # whoever read stderr is gone
        print(f"On worker {worker!r}:\n{text}", file=sys.stderr)
