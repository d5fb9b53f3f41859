"""`RRefGroup`: a value on each worker of a group, used as one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from lockstitch.rpc.constants import UNSET_RPC_TIMEOUT
from lockstitch.rpc.worker_groups.calls import Calls, OfOneWorker, for_each
from lockstitch.rpc.worker_groups.future import GroupFuture
from lockstitch.rref.proxy import CallKind
from lockstitch.rref.rref import RRef
from lockstitch.runtime.functions import as_called
from lockstitch.runtime.invocation import Deferred
from lockstitch.runtime.worker import current_worker
from lockstitch.torch_internals.calls import PlainFuture
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lockstitch.ids import WorkerInfo
    from lockstitch.runtime.invocation import Completing
    from lockstitch.runtime.packing import WhatToCall

    Function = Callable[..., Any]


T = TypeVar("T")


class RRefGroup(Calls, OfOneWorker, Sequence[RRef[T]]):
    """References to a value on each worker of a group, in the order of their ranks, as
    `Group.remote` and `Group.broadcast` return them.

    It is a sequence of `RRef`s; slices of it are `RRefGroup`s. As an argument of a call of the
    group, or of a part of it, it gives each worker the reference to its own value. `workers` are
    the owners. Methods of the values are called by `rpc_sync`, `rpc_async` and `remote`, functions
    of the values by `call` and the like, whose `func` gets the value as its first argument.
    """

    def __init__(self, rrefs: Sequence[RRef[T]]) -> None:
        self._rrefs = tuple(sorted(rrefs, key=lambda rref: rref.owner().worker))
        self.workers = tuple(rref.owner() for rref in self._rrefs)

    def __repr__(self) -> str:
        names = ", ".join(worker.name for worker in self.workers)
        return f"<RRefGroup of {len(self)} values on: {names}>"

    def __len__(self) -> int:
        return len(self._rrefs)

    def __iter__(self) -> Iterator[RRef[T]]:
        return iter(self._rrefs)

    @overload
    def __getitem__(self, index: int) -> RRef[T]: ...
    @overload
    def __getitem__(self, index: slice) -> RRefGroup[T]: ...
    def __getitem__(self, index: int | slice) -> RRef[T] | RRefGroup[T]:
        """The reference at a place, or several of them. Raises `IndexError` where there is none."""
        chosen = self._rrefs[index]
        if isinstance(chosen, RRef):
            return chosen
        if not chosen:
            raise IndexError(f"that part of {self!r} is empty")
        return RRefGroup(chosen)

    def part_of(self, worker: WorkerInfo) -> object:
        for rref in self._rrefs:
            if rref.owner().worker == worker.worker:
                return rref
        raise ValueError(
            f"worker {worker.name!r} has none of the values of {self!r}: call the group that they "
            "were made for, or a part of it"
        )

    # ------------------------------------------------------------ the values

    def to_here(self, timeout: float = UNSET_RPC_TIMEOUT) -> list[T]:
        """Copies of the values, by rank. Raises `GroupError` as `call` does."""
        return self.call(_value, timeout=timeout)

    def rpc_sync(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A proxy whose methods run on all values and return the list of their results, by rank:
        `rrefs.rpc_sync().size()`. They raise `GroupError` as `call` does. `timeout`: seconds for
        each call."""
        return GroupProxy(self, CallKind.SYNC, timeout)

    def rpc_async(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A proxy whose methods run on all values and return a `GroupFuture` of their results."""
        return GroupProxy(self, CallKind.ASYNC, timeout)

    def remote(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A proxy whose methods run on all values and return an `RRefGroup` of their results."""
        return GroupProxy(self, CallKind.REMOTE, timeout)

    def _calls(
        self, func: Function, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> list[WhatToCall]:
        calls = for_each(self.workers, func, args, kwargs)
        return [
            (run_on_value, (rref, function, *arguments), keywords)
            for rref, (function, arguments, keywords) in zip(self._rrefs, calls, strict=True)
        ]


class GroupProxy:
    """Stands for the values of an `RRefGroup`: their methods can be called."""

    def __init__(self, rrefs: RRefGroup[Any], kind: CallKind, timeout: float) -> None:
        self._rrefs = rrefs
        self._kind = kind
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<GroupProxy of {self._rrefs!r} · {self._kind.value} · timeout {self._timeout}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, name)

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        way = "remote" if self._kind is CallKind.REMOTE else "rpc_async"
        calls = for_each(self._rrefs.workers, self._call, args, kwargs)
        futures = [
            getattr(getattr(rref, way)(self._timeout), name)(*own, **(keywords or {}))
            for rref, (_, own, keywords) in zip(self._rrefs, calls, strict=True)
        ]
        if self._kind is CallKind.REMOTE:
            return RRefGroup(futures)
        future: GroupFuture[Any] = GroupFuture(self._rrefs.workers, futures)
        return future.wait() if self._kind is CallKind.SYNC else future


def _called(_rref: RRef[Any], function: Function, /, *args: Any, **kwargs: Any) -> Any:
    name, _, args, _ = as_called(function, args, kwargs)
    return f"{name} on a value", args, kwargs


@needed
def run_on_value(rref: RRef[Any], function: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Runs `function(value, *args, **kwargs)` on the value's owner."""
    allowed = current_worker().agent.allowed
    if allowed is not None:
        allowed.check_callee(function)
    result = function(rref.local_value(), *args, **kwargs)
    if hasattr(function, "_wrapped_async_rpc_function") and isinstance(result, PlainFuture):
        return Deferred(cast("Completing", result))
    return result


run_on_value.as_called = _called  # type: ignore[attr-defined]


@needed
def _value(value: Any) -> Any:
    return value
