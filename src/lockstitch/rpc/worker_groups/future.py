"""The results of many workers, in the order of their ranks, and how failures of some are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstitch.errors import GroupError, RpcError, text_of
from lockstitch.rpc.worker_groups.arrivals import Arrivals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence

    from lockstitch.ids import WorkerInfo
    from lockstitch.runtime.pending import Future

T = TypeVar("T")

_MOST_SHOWN = 8


class GroupFuture(Generic[T]):
    """The results of a call of all workers of a group, to come.

    `workers` are the members, by rank; `futures` those of their results, in the same order, each a
    `Future` as `rpc_async` returns it.
    """

    def __init__(self, workers: Sequence[WorkerInfo], futures: Sequence[Future[T]]) -> None:
        self.workers = tuple(workers)
        self.futures = tuple(futures)

    def __repr__(self) -> str:
        done = sum(future.done() for future in self.futures)
        return f"<GroupFuture · {done} of {len(self.futures)} done>"

    def __len__(self) -> int:
        return len(self.futures)

    def done(self) -> bool:
        """Whether all have answered, or failed."""
        return sum(future.done() for future in self.futures) == len(self.futures)

    def wait(self) -> list[T]:
        """Blocks until all have answered; returns their results, by rank.

        Raises `GroupError` where some have failed, once all are done: it has the errors, by name of
        the worker, and the results of the others.
        """
        for future in self.futures:
            try:
                future.wait()
            except Exception:  # noqa: BLE001 - told by `_results`
                continue
        return self._results()

    def as_completed(self) -> Iterator[tuple[WorkerInfo, Future[T]]]:
        """Yields each worker with its future, in the order in which they complete. A future's
        `wait()` returns the result, or raises the error of that worker."""
        for index in self._arrivals():
            yield self.workers[index], self.futures[index]

    def cancel(self) -> bool:
        """Gives up the calls that are not done; see `Future.cancel`. Returns whether there were
        any."""
        return sum(future.cancel() for future in self.futures) > 0

    def __await__(self) -> Generator[Any, None, list[T]]:
        for future in self.futures:
            try:
                yield from future.__await__()
            except Exception:  # noqa: BLE001 - told by `_results`
                continue
            except BaseException:  # what awaits it is cancelled
                self.cancel()
                raise
        return self._results()

    async def __aiter__(self) -> AsyncIterator[tuple[WorkerInfo, Future[T]]]:
        """`as_completed`, for coroutines."""
        async for index in self._arrivals():
            yield self.workers[index], self.futures[index]

    def _arrivals(self) -> Arrivals[int]:
        """The places of the futures, in the order in which they complete."""
        arrivals: Arrivals[int] = Arrivals()
        for index, future in enumerate(self.futures):
            arrivals.expect(future, index)
        return arrivals

    def _results(self) -> list[T]:
        results: dict[str, T] = {}
        errors: dict[str, Exception] = {}
        for worker, future in zip(self.workers, self.futures, strict=True):
            try:
                results[worker.name] = future.wait()
            except Exception as error:  # noqa: BLE001 - all of them are raised together
                errors[worker.name] = error
        if errors:
            raise failure_of(errors, results, f"of {len(self.futures)} workers")
        return list(results.values())


def failure_of(
    errors: Mapping[Any, Exception], results: Mapping[Any, Any], of_how_many: str
) -> GroupError:
    """The error that tells which have failed, and why; the first of them is its cause."""
    shown = [f"{key}: {_short(error)}" for key, error in list(errors.items())[:_MOST_SHOWN]]
    if len(errors) > _MOST_SHOWN:
        shown.append(f"and {len(errors) - _MOST_SHOWN} more")
    succeeded = f"the results of the other {len(results)} are in this error's `results`"
    error = GroupError(
        f"{len(errors)} {of_how_many} failed ({'; '.join(shown)}); "
        f"{succeeded if results else 'there are no results'}",
        errors,
        results,
    )
    error.__cause__ = next(iter(errors.values()))
    return error


def _short(error: Exception) -> str:
    text = text_of(error).split("\n", 1)[0]
    return text if isinstance(error, RpcError) else f"{type(error).__name__}: {text}"
