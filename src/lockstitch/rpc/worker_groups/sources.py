"""A generator on the worker that runs it: what it yields goes to one `Stream` of another worker.

    pull(n) ─► requests ─► the source's thread: next(generator) ─► the answer, packed and sent
                                                               └─► only then the next item

A generator runs on a thread of its own, from its first step to its end: so it finds there what it
has left, such as the modes of torch that it is in, and nobody else does. The thread answers the
request before it goes on: what was yielded may be changed in place afterwards, and is changed for
nobody. Asynchronous generators take their steps on the worker's event loop, between which their
thread waits.
"""

from __future__ import annotations

import threading
import weakref
from asyncio import CancelledError
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from lockstitch.errors import RpcError, repr_of
from lockstitch.modes import Modes
from lockstitch.runtime.call_spans import CALL_SPANS
from lockstitch.runtime.functions import as_called
from lockstitch.runtime.invocation import Deferred
from lockstitch.runtime.outcome import Outcome
from lockstitch.runtime.own_modes import OwnModes
from lockstitch.runtime.pending import Future
from lockstitch.runtime.worker import current_worker
from lockstitch.torch_internals.calls import PlainFuture
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager

    from lockstitch.rref.rref import RRef
    from lockstitch.runtime.call_spans import Carrier
    from lockstitch.runtime.worker import Worker

Answer = tuple[Any, ...]
"""What a pull gets: `(item,)`, or at the end `(None, what the generator has returned)`."""

CLOSE: Final = -1
"""The place at which a source ends, whatever is still to be made."""
_OVER: Final = (None, None)


class Steps:
    """A generator, or any other iterator, step by step."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def enter(self, modes: Modes) -> AbstractContextManager[None]:
        """Within, the steps are taken in these modes, and what the generator adds to them."""
        return modes.active()

    def next(self) -> Answer:
        """Makes the next item, or finds the end; raises what the generator raises."""
        try:
            return (next(self._iterator),)
        except StopIteration as end:
            return None, end.value

    def close(self) -> None:
        """Ends it early: a generator can clean up."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


class AsyncSteps:
    """The same of an asynchronous generator, on the worker's event loop; the thread waits."""

    def __init__(self, iterator: AsyncIterator[Any], worker: Worker) -> None:
        self._iterator = iterator
        self._loop = worker.agent.core.event_loop
        self._context = copy_context()
        self._modes = OwnModes()

    @contextmanager
    def enter(self, modes: Modes) -> Iterator[None]:
        """See `Steps`."""
        entered = modes.active()
        self._run(_called_later(entered.__enter__))
        yield
        with suppress(RpcError, CancelledError):  # this worker has left, and the loop with it
            self._run(_called_later(entered.__exit__, None, None, None))

    def next(self) -> Answer:
        """See `Steps`."""
        try:
            return (self._run(_awaited(self._iterator.__anext__)),)
        except StopAsyncIteration:
            return _OVER

    def close(self) -> None:
        """See `Steps`."""
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            self._run(_awaited(close))

    def _run(self, step: Coroutine[Any, Any, Any]) -> Any:
        done = threading.Event()
        running = self._loop.run(step, None, self._context, self._modes)
        running.add_done_callback(lambda _: done.set())
        done.wait()
        return running.value()


async def _called_later(function: Callable[..., object], *args: object) -> None:
    function(*args)


async def _awaited(make: Callable[[], Any]) -> Any:
    return await make()


class Production:
    """What the thread of a source does. Requests are `(place, answer)`, None at the end."""

    def __init__(self, steps: Steps | AsyncSteps, report: Callable[[BaseException], None]) -> None:
        self._modes = Modes.of_this_thread()
        self.requests: SimpleQueue[tuple[int, Outcome] | None] = SimpleQueue()
        self.is_closing = False
        self.has_ended = False
        self.ended: Future[None] = Future()
        """Completes at the end, with what the generator has raised."""
        self._steps = steps
        self._report = report
        self._is_over = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Answers one request after the other, until the source is closed or gone; in the modes in
        which the generator was called, which are those of its caller where that carries them."""
        try:
            with self._steps.enter(self._modes):
                self._run()
        finally:
            self.has_ended = True
            self.ended.complete(None, self._error)
            self.answer_late()

    def answer_late(self) -> None:
        """Answers requests that come when the source has ended: the last one may overtake others
        on their way."""
        with suppress(Empty):
            while True:
                request = self.requests.get_nowait()
                if request is not None:
                    request[1].end(_OVER, None)

    def _run(self) -> None:
        waiting: dict[int, Outcome] = {}
        following = 0
        closing: Outcome | None = None
        while (request := self.requests.get()) is not None:
            place, answer = request
            if place == CLOSE:
                closing = answer
                break
            waiting[place] = answer
            del answer, request
            while following in waiting:
                self._answer(waiting.pop(following))
                following += 1
        self.is_closing = True
        for answer in waiting.values():
            answer.end(_OVER, None)
        self._close(closing)

    def _answer(self, answer: Outcome) -> None:
        if self._is_over or self.is_closing:
            answer.end(_OVER, None)
            return
        item, error = None, None
        try:
            item = self._steps.next()
        except BaseException as raised:  # noqa: BLE001 - raised where the user iterates
            self._error = error = raised
        self._is_over = item is None or len(item) > 1
        answer.end(item, error)

    def _close(self, closing: Outcome | None) -> None:
        error: BaseException | None = None
        try:
            self._steps.close()
        except BaseException as raised:  # noqa: BLE001 - raised by `close`, or reported
            error = raised
        if closing is not None:
            closing.end(None, error)
        elif error is not None:
            self._report(error)


class Sources:
    """The sources of one worker: they end when it leaves."""

    def __init__(self, worker: Worker) -> None:
        self._core = worker.agent.core
        self._name = f"{worker.name}-stream"
        self._productions: weakref.WeakSet[Production] = weakref.WeakSet()
        worker.agent.on_close(self.close)

    def start(self, production: Production) -> None:
        """Starts the thread of a production, in the context variables of this one."""
        run, context = production.run, copy_context()
        thread = threading.Thread(target=context.run, args=(run,), name=self._name, daemon=True)
        self._productions.add(production)
        self._core.apart.add(thread)
        thread.start()

    def close(self) -> None:
        """Ends all of them: the generators get a `GeneratorExit`."""
        for production in list(self._productions):
            production.is_closing = True
            production.requests.put(None)


class Source:
    """The value on the generator's worker to which a `Stream` refers."""

    def __init__(self, worker: Worker, iterator: Iterator[Any] | AsyncIterator[Any]) -> None:
        steps = (
            AsyncSteps(iterator, worker) if isinstance(iterator, AsyncIterator) else Steps(iterator)
        )
        self._production = production = Production(steps, worker.agent.report)
        self.ended = production.ended
        self._requests = production.requests
        worker.obtain(Sources, lambda: Sources(worker)).start(production)

    def __del__(self) -> None:
        requests = getattr(self, "_requests", None)
        if requests is not None:
            requests.put(None)

    def ask(self, place: int, answer: Outcome) -> None:
        """`answer` gets item number `place`, from 0 on; or, at `CLOSE`, is told that the generator
        has ended, which makes no further item."""
        if place == CLOSE:
            self._production.is_closing = True
        self._requests.put((place, answer))
        if self._production.has_ended:  # by now
            self._production.answer_late()


@needed
def open_source(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    about: tuple[str, Carrier] | None = None,
) -> Any:
    """Calls a generator function, or any other that returns an iterator, and makes a `Source` of
    what it returns. `about`: of a call that is traced (`call_spans`); its span ends with the
    generator."""
    tracer = CALL_SPANS.tracer
    if about is None or tracer is None:
        return _open(function, args, kwargs)
    with tracer.served(*about, stays_open=True) as span:
        source = _open(function, args, kwargs)
    source.ended.add_done_callback(partial(tracer.finish, span))
    return source


def _open(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Source:
    worker = current_worker()
    if worker.agent.allowed is not None:
        worker.agent.allowed.check_callee(function)
    iterator = function(*args, **kwargs)
    if isinstance(iterator, (Iterator, AsyncIterator)):
        return Source(worker, iterator)
    close = getattr(iterator, "close", None)
    if hasattr(iterator, "__await__") and close is not None:
        close()  # a coroutine that nobody will run
    name = getattr(function, "__qualname__", None) or repr_of(function)
    advice = "a call by rpc_sync or rpc_async returns that" + (
        ", once it is there" if isinstance(iterator, PlainFuture) else ""
    )
    raise TypeError(
        f"a stream needs a generator or another iterator, and {name} on worker {worker.name!r} "
        f"returned a {type(iterator).__name__}: {advice}"
    )


def _called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    _about: object = None,
) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    name, _, args, kwargs = as_called(function, args, kwargs)
    return name, args, kwargs


open_source.as_called = _called  # type: ignore[attr-defined]


@needed
def ask_source(source: RRef[Source], place: int) -> Any:
    """Asks a source on its worker; see `Source.ask`. Holds no thread, also while the source is
    still to be made."""
    answer = Outcome()

    def ask() -> None:
        try:
            made = source.local_value()
        except Exception as error:  # noqa: BLE001 - what has kept the source from being made
            answer.end(None, error)
        else:
            made.ask(place, answer)

    assert source._value is not None
    source._value.when_done(ask)
    return Deferred(answer, answers_here=True)
