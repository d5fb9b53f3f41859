"""What a group of workers and the references of a group have in common: ways of calling all."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from lockstitch.memory.host_copies import HostCopies
from lockstitch.rpc import api
from lockstitch.rpc.constants import UNSET_RPC_TIMEOUT
from lockstitch.rpc.profiling import RPCExecMode
from lockstitch.rpc.worker_groups.future import GroupFuture
from lockstitch.rpc.worker_groups.merging import GroupStream
from lockstitch.rpc.worker_groups.reductions import operation_of, reduce
from lockstitch.rpc.worker_groups.streams import DEFAULT_WINDOW, open_stream
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.outgoing import to_several
from lockstitch.runtime.pending import Future
from lockstitch.runtime.spans_of_callers import begun_in_span, itself
from lockstitch.runtime.worker import current_worker
from lockstitch.wire.messages import Call

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Iterator,
        Mapping,
        Sequence,
    )

    from lockstitch.ids import WorkerInfo
    from lockstitch.rpc.api import Later
    from lockstitch.rpc.worker_groups.reductions import Operation
    from lockstitch.runtime.outgoing import MakeCall
    from lockstitch.runtime.packing import WhatToCall

    Function = Callable[..., Any]

T = TypeVar("T")


class OfOneWorker(ABC):
    """An argument that is another one for each worker: a group's call gives each its own."""

    @abstractmethod
    def part_of(self, worker: WorkerInfo) -> object:
        """What that worker gets. Raises `ValueError` where there is nothing for it."""


class Calls(ABC):
    """See the module. Results are in the order of the workers' ranks."""

    workers: tuple[WorkerInfo, ...]

    @abstractmethod
    def _calls(
        self, func: Function, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> list[WhatToCall]:
        """What is called on each of the workers."""

    @overload
    def call(
        self,
        func: Callable[..., Later[T]],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> list[T]: ...
    @overload
    def call(
        self,
        func: Callable[..., T],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> list[T]: ...
    def call(
        self,
        func: Function,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> list[Any]:
        """Runs `func(*args, **kwargs)` on all workers, at the same time; returns the results, by
        rank.

        `func`, `args`, `kwargs` and `timeout` are those of `rpc_sync`, and so is what each worker
        may raise. Raises `GroupError` where some have failed: when all are done, with what each
        has raised, by its name, and the results of the others.
        """
        return self.call_async(func, args, kwargs, timeout).wait()

    @overload
    def call_async(
        self,
        func: Callable[..., Later[T]],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> GroupFuture[T]: ...
    @overload
    def call_async(
        self,
        func: Callable[..., T],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> GroupFuture[T]: ...
    def call_async(
        self,
        func: Function,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> GroupFuture[Any]:
        """Like `call`, but returns a `GroupFuture` of the results at once."""
        futures: list[Future[Any]] = []
        name = name_of(func)
        calls = zip(self.workers, self._calls(func, args, kwargs), strict=True)
        with contextlib.closing(HostCopies()) as copies:
            make = to_several(copies) if len(self.workers) > 1 else Call
            for worker, call in calls:
                future = begin_call(worker, call, timeout, make, name=name, is_first=not futures)
                futures.append(future)
        return GroupFuture(self.workers, futures)

    @overload
    def as_completed(
        self,
        func: Callable[..., Later[T]],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> Iterator[tuple[WorkerInfo, Future[T]]]: ...
    @overload
    def as_completed(
        self,
        func: Callable[..., T],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> Iterator[tuple[WorkerInfo, Future[T]]]: ...
    def as_completed(
        self,
        func: Function,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> Iterator[tuple[WorkerInfo, Future[Any]]]:
        """Like `call`, but yields each worker with the future of its result as soon as it has
        answered, or failed. All calls are made at once."""
        return self.call_async(func, args, kwargs, timeout).as_completed()

    @overload
    def reduce(
        self,
        func: Function,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
        *,
        op: Literal["mean"],
    ) -> Any: ...
    @overload
    def reduce(
        self,
        func: Callable[..., Later[T]],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
        *,
        op: str | Operation = "sum",
    ) -> T: ...
    @overload
    def reduce(
        self,
        func: Callable[..., T],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
        *,
        op: str | Operation = "sum",
    ) -> T: ...
    def reduce(
        self,
        func: Function,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
        *,
        op: str | Operation = "sum",
    ) -> Any:
        """Like `call`, but joins the results to one: by "sum", "mean", "product", "max" or "min",
        element by element, or by a function of two results.

        Results are numbers or tensors of one shape, or dictionaries, lists and tuples of these.
        They are joined from the lowest rank to the highest, so that the result does not depend on
        who answers first. Raises what `call` does, and `ValueError` where two results differ in
        form.
        """
        operation_of(op)
        return reduce(self.call(func, args, kwargs, timeout), op, self.workers)

    def stream(
        self,
        func: Callable[..., Iterator[T] | AsyncIterator[T]],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
        *,
        window: int = DEFAULT_WINDOW,
    ) -> GroupStream[T]:
        """Runs a generator function on all workers; returns a `GroupStream`, which yields
        `(worker, item)` as items come, and has each worker's `Stream` in `streams`. See
        `rpc.stream` for the arguments."""
        streams = [
            open_stream(worker, *call, timeout=timeout, window=window)
            for worker, call in zip(self.workers, self._calls(func, args, kwargs), strict=True)
        ]
        return GroupStream(self.workers, streams)


def begin_call(
    worker: WorkerInfo,
    call: WhatToCall,
    timeout: float,
    make: MakeCall = Call,
    *,
    name: str = "",
    is_first: bool = True,
) -> Future[Any]:
    """Makes one of the calls. `name`: of what the program calls, where a function of ours does that
    for it. What cannot be sent raises; where it is not the first, others have begun, and then it
    fails this one."""
    caller = current_worker()
    future: Future[Any] = Future()

    def begin() -> Future[Any]:
        prepared = api._prepare(*call, name)
        with api._range_if_profiling(RPCExecMode.ASYNC, call[0], caller, worker):
            caller.agent.outgoing.call_into(future, worker.worker, prepared, timeout, make)
        return future

    try:
        return begun_in_span(name or name_of(call[0]), worker.name, begin, itself)
    except Exception as error:
        if is_first:
            raise
        future.complete(None, error)
    return future


def for_each(
    workers: Sequence[WorkerInfo],
    func: Function,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> list[WhatToCall]:
    """The call of a function as each of the workers gets it. Raises what is wrong with it before
    anybody is called."""
    api._check_callable(func)
    arguments, keywords = api._arguments(args, kwargs)
    values = (*arguments, *(keywords or {}).values())
    if not any(isinstance(each, OfOneWorker) for each in values):
        return [(func, arguments, keywords)] * len(workers)
    return [
        (
            func,
            tuple([_part(each, worker) for each in arguments]),
            keywords and {key: _part(each, worker) for key, each in keywords.items()},
        )
        for worker in workers
    ]


def _part(argument: Any, worker: WorkerInfo) -> Any:
    return argument.part_of(worker) if isinstance(argument, OfOneWorker) else argument
