"""The event loop of a worker: one thread on which all its `async def` functions run.

    reader or pool thread: function(*args) is a coroutine ─► EventLoop.run ─► the loop's thread
    the loop: step by step, each in the caller's context variables and the coroutine's own modes
    at the end: Running ─► a thread of the pool packs the answer, so that no copy holds the loop up

A coroutine that awaits another call holds no thread. What it must not do is to block: then no
other could go on, and a call that needs one of them would never end. So waits of ours are refused
there (`refuse_to_block`). The thread starts with the first coroutine. A coroutine that raises
`SystemExit`, or a `KeyboardInterrupt`, fails as it would with any other error; the loop goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine
from contextvars import Context, copy_context
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from lockstitch.errors import RpcError
from lockstitch.runtime.inherited import INHERITED
from lockstitch.runtime.outcome import Outcome
from lockstitch.runtime.own_modes import OwnModes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType, TracebackType

_CLOSED: Final = "this worker has shut down: its event loop runs nothing any more"


class Stepped(Coroutine[Any, Any, Any]):
    """A coroutine each step of which runs in its own modes, and under the deadline of its call."""

    context: Context | None = None
    """In which each step runs, where its task does not run in that itself."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        deadline: float | None,
        modes: OwnModes | None = None,
    ) -> None:
        self._coroutine = coroutine
        self._deadline = deadline
        self._modes = OwnModes() if modes is None else modes
        self.__qualname__ = getattr(coroutine, "__qualname__", repr(coroutine))  # asyncio tells it

    def __repr__(self) -> str:
        return repr(self._coroutine)

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(
        self,
        typ: Any,
        val: Any = None,
        tb: TracebackType | None = None,
    ) -> Any:
        error = typ if val is None and tb is None else val or typ()
        try:
            return self._step(self._coroutine.throw, error)
        finally:
            del typ, val, error  # whose frames, of which this is one, would keep it in a circle

    def close(self) -> None:
        self._step(self._coroutine.close)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> Generator[Any, Any, Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        before, INHERITED.deadline = INHERITED.deadline, self._deadline
        self._modes.resume()
        try:
            return step(*values) if self.context is None else self.context.run(step, *values)
        finally:
            self._modes.suspend()
            INHERITED.deadline = before
            del values  # see `throw`


class Running(Outcome):
    """A coroutine on the loop, and how it ended; callbacks run on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def begin(self, coroutine: Stepped, context: Context) -> None:
        """Called on the loop, in `context`: `coroutine` starts now."""
        if sys.version_info >= (3, 11):
            task = self._loop.create_task(coroutine, context=context)
        else:  # which runs in a copy, in which what is set would be lost with the task
            coroutine.context = context
            task = self._loop.create_task(coroutine)
        self._task = task
        task.add_done_callback(self._finish)
        if self._is_cancelled:
            task.cancel()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._task = None
        try:
            if task.cancelled():
                self.end(None, asyncio.CancelledError())
            elif task.exception() is None:
                self.end(task.result(), None)
            else:
                self.end(None, task.exception())
        finally:
            del task  # the frames of its error, of which this is one, would keep it in a circle

    def frames(self) -> list[FrameType]:
        """Returns the frames of the coroutine and of what it awaits, the outermost first; from any
        thread. There are none before it has begun and when it is over."""
        task = self._task
        awaited: Any = None if task is None else task.get_coro()
        if isinstance(awaited, Stepped):
            awaited = awaited._coroutine
        frames = []
        while isinstance(awaited, CoroutineType) and awaited.cr_frame is not None:
            frames.append(awaited.cr_frame)
            awaited = awaited.cr_await
        return frames

    def cancel(self) -> None:
        """Asks the coroutine to end: it gets a `CancelledError` where it waits."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: all were cancelled
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


class EventLoop:
    """See the module. `enter` runs first on its thread; `name` is the worker's."""

    def __init__(self, name: str, enter: Callable[[], None]) -> None:
        self._name = name
        self._enter = enter
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing: asyncio.Future[None] | None = None
        """Done when the loop is to end."""
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "not begun" if self._loop is None else "runs"
        return f"<EventLoop of {self._name!r} · {state}>"

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        deadline: float | None = None,
        context: Context | None = None,
        modes: OwnModes | None = None,
    ) -> Running:
        """Has a coroutine run, in a copy of the caller's context variables, or in `context` itself.
        `deadline`: that of the call which it serves, of the worker's clock. Raises `RpcError` when
        the worker has shut down."""
        stepped = Stepped(coroutine, deadline, modes)
        context = copy_context() if context is None else context
        with self._lock:
            if not self._is_closed:
                loop = self._started()
                running = Running(loop)
                # Under the lock, so that it comes before what `close` has the loop do.
                loop.call_soon_threadsafe(running.begin, stepped, context, context=context)
                return running
        coroutine.close()  # nobody will run it
        raise RpcError(_CLOSED)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._closing = self._loop.create_future()
            self._thread = threading.Thread(
                target=self._serve,
                args=(self._loop, self._closing),
                name=f"{self._name}-loop",
                daemon=True,
            )
            self._thread.start()
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop, closing: asyncio.Future[None]) -> None:
        self._enter()
        INHERITED.loop_of = self._name
        asyncio.set_event_loop(loop)
        try:
            _run_until(loop, closing)
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                _run_until(loop, asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def living(self) -> list[threading.Thread]:
        """Its thread, where that has not ended."""
        return [] if self._thread is None or not self._thread.is_alive() else [self._thread]

    def close(self, timeout_seconds: float) -> list[threading.Thread]:
        """Cancels all coroutines and ends the thread; returns it where it has not ended in time.
        Harmless when repeated."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            loop, thread, closing = self._loop, self._thread, self._closing
        if loop is None or thread is None or closing is None:
            return []
        if is_first:
            loop.call_soon_threadsafe(closing.set_result, None)
        if thread is not threading.current_thread():
            thread.join(timeout_seconds)
        return self.living()


def _run_until(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
    """Runs the loop until `future` is done. asyncio leaves the loop with an error that is to end
    the program; the coroutine's task has it as well, and hands it to who waits."""
    while not future.done():
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_until_complete(future)
