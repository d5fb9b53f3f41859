"""Futures in the order in which they complete, for a thread that waits or for a coroutine."""

from __future__ import annotations

import asyncio
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstitch.runtime.inherited import refuse_to_block
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lockstitch.runtime.pending import Future

K = TypeVar("K")


class Arrivals(Generic[K]):
    """Iterating yields the key of each future that is expected, once it has completed. More may be
    expected meanwhile; it ends when none is. Use it by one thread, or by one coroutine."""

    def __init__(self) -> None:
        self._arrived: SimpleQueue[K] = SimpleQueue()
        self._waker: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._expected = 0

    def __len__(self) -> int:
        return self._expected

    def expect(self, future: Future[Any], key: K) -> None:
        """There is one more to come."""
        self._expected += 1

        def note(_future: object) -> None:
            self._arrived.put(key)
            waker = self._waker
            if waker is not None:
                waker[0].call_soon_threadsafe(waker[1].set)

        future.add_inner_callback(note)
        future.attend()

    def __iter__(self) -> Iterator[K]:
        while self._expected:
            yield self.next()

    def next(self) -> K:
        """Waits for the next one, and returns its key."""
        if self._arrived.empty():
            refuse_to_block("waiting for the next result")
            with current_worker().agent.blocked():
                key = self._arrived.get()
        else:
            key = self._arrived.get()
        self._expected -= 1
        return key

    async def __aiter__(self) -> AsyncIterator[K]:
        while self._expected:
            yield await self.next_async()

    async def next_async(self) -> K:
        """`next`, for a coroutine."""
        event = asyncio.Event()
        self._waker = (asyncio.get_running_loop(), event)
        try:
            while self._arrived.empty():
                await event.wait()
                event.clear()
        finally:
            self._waker = None
        self._expected -= 1
        return self._arrived.get()
