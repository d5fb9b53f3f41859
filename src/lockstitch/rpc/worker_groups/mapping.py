"""`map`: items handed out to the workers of a group, the next one to whoever is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.errors import PeerDiedError, add_note
from lockstitch.rpc.worker_groups.arrivals import Arrivals
from lockstitch.rpc.worker_groups.future import failure_of
from lockstitch.rpc.worker_groups.work_list import WorkList
from lockstitch.runtime.worker import current_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lockstitch.ids import WorkerInfo
    from lockstitch.runtime.pending import Future

    Begin = Callable[[WorkerInfo, Any], Future[Any]]


def run_map(
    begin: Begin,
    items: Iterable[Any],
    workers: Sequence[WorkerInfo],
    in_flight: int,
    *,
    reassigns: bool,
) -> list[Any]:
    """Has `begin(worker, item)` called for each item; returns the results in the order of items.

    Raises `GroupError` where an item has failed, with errors and results by the index of the item.
    """
    if in_flight < 1:
        raise ValueError(f"in_flight is how many items a worker has at a time, not {in_flight}")
    work: WorkList[WorkerInfo] = WorkList(items, workers, in_flight, reassigns=reassigns)
    arrivals: Arrivals[int] = Arrivals()
    futures: dict[int, Future[Any]] = {}
    try:
        _hand_out(work, begin, arrivals, futures)
        for index in arrivals:
            _take_in(work, index, futures.pop(index))
            _hand_out(work, begin, arrivals, futures)
    except BaseException:  # the items raise, or Ctrl-C
        for future in futures.values():
            future.cancel()
        raise
    if work.errors:
        raise failure_of(work.errors, work.results, "items of the map")
    return work.in_order()


def _hand_out(
    work: WorkList[WorkerInfo],
    begin: Begin,
    arrivals: Arrivals[int],
    futures: dict[int, Future[Any]],
) -> None:
    while (handed := work.hand_out()) is not None:
        worker, index, item = handed
        future = futures[index] = begin(worker, item)
        arrivals.expect(future, index)


def _take_in(work: WorkList[WorkerInfo], index: int, future: Future[Any]) -> None:
    worker = work.holder(index)
    try:
        result = future.wait()
    except Exception as error:  # noqa: BLE001 - told by `run_map`
        add_note(error, f"item {index} of the map, on worker {worker.name!r}")
        is_dead = (
            isinstance(error, PeerDiedError)
            and error.worker == worker.name
            and current_worker().agent.is_lost(worker.worker)
        )
        work.note_error(index, error, is_dead=is_dead)
    else:
        work.note_result(index, result)
