"""`Group`: a set of workers that is called as one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lockstitch.ids import WorkerInfo
from lockstitch.memory.host_copies import HostCopies
from lockstitch.rpc import api
from lockstitch.rpc.constants import UNSET_RPC_TIMEOUT
from lockstitch.rpc.membership import Membership
from lockstitch.rpc.worker_groups.calls import Calls, begin_call, for_each
from lockstitch.rpc.worker_groups.mapping import run_map
from lockstitch.rpc.worker_groups.references import RRefGroup
from lockstitch.rpc.worker_groups.selection import in_order, select
from lockstitch.rref.rref import RRef
from lockstitch.rref.service import ReferenceService
from lockstitch.runtime.functions import name_of
from lockstitch.runtime.spans_of_callers import begun_in_span
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lockstitch.rpc.api import Later
    from lockstitch.rpc.worker_groups.selection import Workers
    from lockstitch.runtime.packing import WhatToCall

    Function = Callable[..., Any]


T = TypeVar("T")


class Group(Calls, Sequence[WorkerInfo]):
    """A set of workers that is called as one, in the order of their ranks; made by `rpc.group`.

    It is a sequence of the `WorkerInfo`s of its members: it can be indexed and cut into slices,
    which are groups again, and joined to another one by `|`; `-` leaves workers out. It never
    changes: a worker that joins later is in no group that was made before, and a member that has
    died stays one, whose calls fail.
    """

    def __init__(self, workers: Iterable[WorkerInfo]) -> None:
        self.workers = in_order(workers)

    def __repr__(self) -> str:
        return f"<Group of {len(self)} workers: {', '.join(self.names)}>"

    @property
    def names(self) -> list[str]:
        """The names of the members, by rank."""
        return [worker.name for worker in self.workers]

    # ------------------------------------------------------------ who is in it

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[WorkerInfo]:
        return iter(self.workers)

    @overload
    def __getitem__(self, index: int) -> WorkerInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Group: ...
    def __getitem__(self, index: int | slice) -> WorkerInfo | Group:
        """A member by its place in the group, or a group of several.

        As with any sequence, a slice that reaches beyond the end is cut short. Raises `IndexError`
        where there is nobody.
        """
        try:
            chosen = self.workers[index]
        except IndexError:
            raise IndexError(f"there is no member {index} in {self!r}") from None
        if isinstance(chosen, WorkerInfo):
            return chosen
        if not chosen:
            raise IndexError(f"nobody is in the part {_shown(index)} of {self!r}")
        return Group(chosen)

    def __contains__(self, worker: object) -> bool:
        return worker in self.workers or worker in self.names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._lives() == other._lives()

    def __hash__(self) -> int:
        return hash(self._lives())

    def __or__(self, other: Group | WorkerInfo) -> Group:
        joined = {worker.worker: worker for worker in (*self, *_workers_of(other))}
        return Group(joined.values())

    def __sub__(self, other: Group | WorkerInfo) -> Group:
        without = {worker.worker for worker in _workers_of(other)}
        left = [worker for worker in self if worker.worker not in without]
        if not left:
            raise ValueError(f"nobody is left in {self!r} without those")
        return Group(left)

    def _lives(self) -> tuple[object, ...]:
        return tuple(worker.worker for worker in self.workers)

    # ------------------------------------------------------------ calling them

    def _calls(
        self, func: Function, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> list[WhatToCall]:
        return for_each(self.workers, func, args, kwargs)

    @overload
    def map(
        self,
        func: Callable[..., Later[T]],
        items: Iterable[Any],
        timeout: float = UNSET_RPC_TIMEOUT,
        *,
        in_flight: int = 1,
        reassign: bool = False,
    ) -> list[T]: ...
    @overload
    def map(
        self,
        func: Callable[..., T],
        items: Iterable[Any],
        timeout: float = UNSET_RPC_TIMEOUT,
        *,
        in_flight: int = 1,
        reassign: bool = False,
    ) -> list[T]: ...
    def map(
        self,
        func: Function,
        items: Iterable[Any],
        timeout: float = UNSET_RPC_TIMEOUT,
        *,
        in_flight: int = 1,
        reassign: bool = False,
    ) -> list[Any]:
        """Runs `func(item)` for each item on some worker; returns the results in the order of
        items.

        Each worker has `in_flight` items at a time (1), and gets the next one as soon as it is done
        with another, so that the slow do less. Items are taken from `items` as they are needed.
        `timeout`: seconds for each item.

        Raises `GroupError` where an item has failed: no more are handed out then, those under way
        come to their end, and the error has errors and results by the index of the item. A
        function runs once for each item or not at all; `reassign` allows it to be run once more, by
        another worker, where the first one has died.
        """
        api._check_callable(func)

        def begin(worker: WorkerInfo, item: Any) -> Any:
            return begin_call(worker, (func, (item,), None), timeout)

        return run_map(begin, items, self.workers, in_flight, reassigns=reassign)

    @overload
    def remote(
        self,
        func: Callable[..., Later[T]],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> RRefGroup[T]: ...
    @overload
    def remote(
        self,
        func: Callable[..., T],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> RRefGroup[T]: ...
    def remote(
        self,
        func: Function,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> RRefGroup[Any]:
        """Like `call`, but leaves each result where it is; returns references to them at once.

        As with `rpc.remote`, what goes wrong in making a value is raised where it is used.
        """
        create = current_worker().service(ReferenceService).create_remote
        calls = zip(self.workers, self._calls(func, args, kwargs), strict=True)
        name = name_of(func)
        with contextlib.closing(HostCopies()) as copies:

            def begin(worker: WorkerInfo, call: WhatToCall) -> RRef[Any]:
                return create(worker.worker, *api._prepare(*call, name), timeout, copies)

            return RRefGroup(
                [
                    begun_in_span(name, each.name, partial(begin, each, call), RRef._get_outcome)
                    for each, call in calls
                ]
            )

    def broadcast(self, value: T, timeout: float = UNSET_RPC_TIMEOUT) -> RRefGroup[T]:
        """Gives each worker a copy of `value`; returns references to the copies at once.

        `value`: a tensor, or anything that can be sent. Inside an autograd context the copies of a
        tensor belong to one graph: its gradient is the sum of theirs. What a worker writes into its
        copy in place nobody else sees. Pass the result to `call` of this group, or of a part of it,
        where each worker gets the reference to its own copy, or call a function on the copies by
        `RRefGroup.call`.
        """
        return self.remote(_itself, (value,), None, timeout)


def group(workers: Workers | None = None) -> Group:
    """Returns a `Group` of workers to be called as one; by default of all, this one too.

    `workers`: a name, a rank or a `WorkerInfo`, or several of them. In a name `*` stands for any
    characters, `?` for one and `[ab]` for one of several: `rpc.group("trainer*")`. This is looked
    up now: where workers come and go, make a new group to have those who are in at that time.

    Raises `ValueError` where a name, pattern or rank means nobody (it lists who is there), and for
    a worker that is named twice.
    """
    if isinstance(workers, Group):
        return workers
    return Group(select(current_worker().service(Membership).present(), workers))


def _workers_of(other: object) -> Iterable[WorkerInfo]:
    if isinstance(other, Group):
        return other.workers
    if isinstance(other, WorkerInfo):
        return (other,)
    raise TypeError(f"a group is joined with groups and WorkerInfos, not with {other!r}")


def _shown(index: object) -> str:
    if not isinstance(index, slice):
        return f"[{index}]"
    ends = ["" if each is None else str(each) for each in (index.start, index.stop)]
    step = "" if index.step is None else f":{index.step}"
    return f"[{':'.join(ends)}{step}]"


@needed
def _itself(value: Any) -> Any:
    return value
