"""`GroupStream`: the streams of many workers, item by item as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstitch.errors import add_note
from lockstitch.rpc.worker_groups.arrivals import Arrivals
from lockstitch.rpc.worker_groups.future import failure_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from lockstitch.ids import WorkerInfo
    from lockstitch.rpc.worker_groups.streams import Stream

T = TypeVar("T")


class GroupStream(Generic[T]):
    """What the generators of all workers of a group yield: an iterator of `(worker, item)`, also an
    asynchronous one. `streams` has the `Stream` of each, by rank, for `zip(*group.streams)`; use
    either these or the iterator.

    What one of the generators raises, or the death of its worker, is raised once; whoever goes on
    iterating gets the items of the others. `close`, which the end of a `with` block calls too, ends
    all generators.
    """

    def __init__(self, workers: Sequence[WorkerInfo], streams: Sequence[Stream[T]]) -> None:
        self.workers = tuple(workers)
        self.streams = tuple(streams)
        self._arrivals: Arrivals[int] = Arrivals()
        self._heads: dict[int, Any] = {}
        self._is_begun = False

    def __repr__(self) -> str:
        return f"<GroupStream from {', '.join(worker.name for worker in self.workers)}>"

    def __iter__(self) -> Iterator[tuple[WorkerInfo, T]]:
        return self

    def __next__(self) -> tuple[WorkerInfo, T]:
        self._begin()
        while self._arrivals:
            found = self._take(self._arrivals.next())
            if found is not None:
                return found
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[tuple[WorkerInfo, T]]:
        return self

    async def __anext__(self) -> tuple[WorkerInfo, T]:
        self._begin()
        while self._arrivals:
            found = self._take(await self._arrivals.next_async())
            if found is not None:
                return found
        raise StopAsyncIteration

    def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            for index in range(len(self.streams)):
                self._expect(index)

    def _expect(self, index: int) -> None:
        head = self.streams[index].head()
        if head is not None:
            self._heads[index] = head
            self._arrivals.expect(head, index)

    def _take(self, index: int) -> tuple[WorkerInfo, T] | None:
        """The item that has arrived; None where that stream is over."""
        worker = self.workers[index]
        try:
            item = self.streams[index].take(self._heads.pop(index))
        except StopIteration:
            return None
        except Exception as error:
            add_note(error, f"in the stream of worker {worker.name!r}; others may go on")
            raise
        self._expect(index)
        return worker, item

    def close(self) -> None:
        """Ends all streams; harmless when repeated. Raises `GroupError` where generators raise."""
        errors: dict[str, Exception] = {}
        for worker, stream in zip(self.workers, self.streams, strict=True):
            try:
                stream.close()
            except Exception as error:  # noqa: BLE001 - all of them are raised together
                errors[worker.name] = error
        self._raise(errors)

    async def aclose(self) -> None:
        """`close`, for coroutines."""
        errors: dict[str, Exception] = {}
        for worker, stream in zip(self.workers, self.streams, strict=True):
            try:
                await stream.aclose()
            except Exception as error:  # noqa: BLE001 - likewise
                errors[worker.name] = error
        self._raise(errors)

    def _raise(self, errors: dict[str, Exception]) -> None:
        if errors:
            raise failure_of(errors, {}, f"of {len(self.streams)} generators")

    def __enter__(self) -> GroupStream[T]:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> GroupStream[T]:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()
