"""`Stream`: what a generator on another worker yields, here.

    here                                        the generator's worker
    open ────────────────────────────────────►  Source: a generator, on a thread of its own
    pull 0, pull 1 … pull w-1 ───────────────►
    next() ◄──────────── item 0 ──────────────  makes item 0, then 1 … w-1, and waits
         └─ pull w ──────────────────────────►  makes item w

A pull is a call like any other: its answer is stitched onto the graph, and a worker that dies fails
it. `window` pulls are under way, and so many items may be made that nobody has asked for yet.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from lockstitch.autograd.context import context_of_this_thread, set_current_context
from lockstitch.errors import PeerDiedError
from lockstitch.rpc import api
from lockstitch.rpc.constants import UNSET_RPC_TIMEOUT
from lockstitch.rpc.worker_groups.arrivals import Arrivals
from lockstitch.rpc.worker_groups.sources import CLOSE, ask_source, open_source
from lockstitch.rref.rref import RRef
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.call_spans import CALL_SPANS
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.spans_of_callers import begun_in_span
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from lockstitch.ids import WorkerInfo
    from lockstitch.rpc.worker_groups.sources import Answer
    from lockstitch.runtime.pending import Future
    from lockstitch.runtime.worker import Worker

T = TypeVar("T")

DEFAULT_WINDOW = 8


class Stream(Generic[T]):
    """The items that a generator on another worker yields: an iterator, also an asynchronous one.

    All items belong to the autograd context in which the stream was opened, and have a history if
    gradients were recorded then. What the generator raises, and the death of its worker, is raised
    where its next item is asked for; then the stream is over. Where a coroutine is cancelled that
    waits, nothing is lost: who asks next gets the item. `close`, which the end of a `with` block
    calls too, ends the generator early. For one consumer at a time.
    """

    def __init__(
        self, worker: Worker, source: RRef[Any], callee: WorkerInfo, timeout: float, window: int
    ) -> None:
        self.worker = callee
        self._home = worker
        self._source: RRef[Any] | None = source
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pulls: deque[Future[Answer]] = deque()
        self._pulled = 0
        self._arrivals: Arrivals[None] = Arrivals()
        self._awaited: Future[Answer] | None = None
        """The last item that a coroutine has waited for."""
        self._window = window
        self._context = context_of_this_thread()
        self._is_recorded = torch.is_grad_enabled()
        self._pull(window)

    def __repr__(self) -> str:
        state = "over" if self._source is None else f"{self._pulled} items asked for"
        return f"<Stream from {self.worker.name!r} · {state}>"

    # ------------------------------------------------------------ asking for items

    def _pull(self, count: int) -> None:
        """Asks for so many items more."""
        assert self._source is not None
        before = set_current_context(self._context)
        try:
            with self._home.active(), torch.set_grad_enabled(self._is_recorded):
                call = self._home.agent.outgoing.call_async
                for _ in range(count):
                    arguments = (self._source, self._pulled)
                    self._pulls.append(call(self.worker.worker, ask_source, arguments, None, 0))
                    self._pulled += 1
        finally:
            set_current_context(before)

    def head(self) -> Future[Answer] | None:
        """What the next item will complete; None where the stream is over. Its time runs."""
        with self._lock:
            if self._source is None:
                return None
            self._check_context()
            if not self._pulls:
                self._pull(1)
            head = self._pulls[0]
        seconds = self._home.agent.default_timeout if self._timeout < 0 else self._timeout
        if seconds:
            head.limit(seconds)
        return head

    def _check_context(self) -> None:
        here = context_of_this_thread()
        if here is not None and self._context is not None and here is not self._context:
            raise RuntimeError(
                f"this stream was opened in the autograd context {self._context.id}, and is used "
                f"in another one, {here.id}, where its items would have no history: open one "
                "stream for each context"
            )

    def take(self, head: Future[Answer]) -> T:
        """The item of a head that has completed. Raises `StopIteration` at the end, else what has
        failed it."""
        with self._lock:
            if self._source is None:  # it was closed
                raise StopIteration
            self._pulls.popleft()
        try:
            answer = head.wait()
        except BaseException:
            self._end()
            raise
        if len(answer) > 1:
            self._end()
            raise StopIteration(answer[1])
        with self._lock:
            if not self._is_over():
                self._pull(1)
        item: T = answer[0]
        return item

    # ------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        head = self.head()
        if head is None:
            raise StopIteration
        with contextlib.suppress(Exception):  # raised by `take`
            head.wait()
        return self.take(head)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        head = self.head()
        if head is None:
            raise StopAsyncIteration
        # Not `await head`: where the wait is cancelled, the item is for who waits next.
        while not head.done():
            if self._awaited is not head:
                self._awaited = head
                self._arrivals.expect(head, None)
            await self._arrivals.next_async()
        try:
            return self.take(head)
        except StopIteration:
            raise StopAsyncIteration from None

    # ------------------------------------------------------------ the end

    def _is_over(self) -> bool:
        return self._source is None

    def close(self) -> None:
        """Ends the stream: the generator gets a `GeneratorExit` where it has stopped, and this
        returns when it has cleaned up. Raises what it raises then; harmless when repeated."""
        closing = self._begin_to_close()
        if closing is not None:
            with contextlib.suppress(PeerDiedError):  # then there is nothing to be closed
                closing.wait()

    async def aclose(self) -> None:
        """`close`, for coroutines."""
        closing = self._begin_to_close()
        if closing is not None:
            with contextlib.suppress(PeerDiedError):
                await closing

    def _begin_to_close(self) -> Future[None] | None:
        source = self._end()
        if source is None:
            return None
        call = self._home.agent.outgoing.call_async
        return call(self.worker.worker, ask_source, (source, CLOSE), None, self._timeout)

    def _end(self) -> RRef[Any] | None:
        with self._lock:
            source, self._source = self._source, None
            self._pulls.clear()
        return source

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


def open_stream(
    callee: WorkerInfo,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    *,
    timeout: float,
    window: int,
) -> Stream[Any]:
    """See `stream`."""
    if window < 1:
        raise ValueError(
            f"window is how many items may be made before they are asked for, 1 at least, not "
            f"{window!r}"
        )
    worker = current_worker()
    create, name = worker.service(ReferenceService).create_remote, name_of(function)

    def begin() -> RRef[Any]:
        # The span of who serves it lasts as long as the generator: that makes it (`open_source`).
        about = None if CALL_SPANS.tracer is None else (name, CALL_SPANS.tracer.carrier())
        call = api._prepare(open_source, (function, args, kwargs or {}, about), None, name=None)
        return create(callee.worker, *call, timeout)

    source = begun_in_span(name, callee.name, begin, RRef._get_outcome)
    return Stream(worker, source, callee, timeout, window)


def stream(
    to: str | int | WorkerInfo,
    func: Callable[..., Iterator[T] | AsyncIterator[T]],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
    *,
    window: int = DEFAULT_WINDOW,
) -> Stream[T]:
    """Runs a generator function on worker `to`; returns a `Stream`, which yields its items here as
    they are made.

    `func` may also be an asynchronous generator function, or return any other iterator; `to`,
    `args` and `kwargs` are those of `rpc_sync`. `timeout`: seconds for each item, counted while it
    is waited for. `window`: how many items (8) may be made and sent before they are asked for; the
    generator then waits. Iterating raises what a call does, and what the generator raises; a `func`
    that returns something else is a `TypeError` there.

        >>> for loss in rpc.stream("trainer0", train, args=(epochs,)):
        ...     print(loss)
    """
    callee = api._callee(current_worker(), to, func)
    return open_stream(callee, func, *api._arguments(args, kwargs), timeout=timeout, window=window)
