"""What all workers of a set do together, by calls: gather objects, and wait for each other.

They talk along a tree (`tree`): each has at most five to talk to, and up to five workers are a star
around the one whose name comes first.

Programs call these as `rpc.api._all_gather` and so on, and patch them there. Therefore the two
functions that run on *other* workers travel under that module's name: what the callee's program put
in their place is what runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.errors import text_of
from lockstitch.rpc.constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from lockstitch.rpc.quiescence import Quiescence, TimeLimit
from lockstitch.rpc.tree import Attendance
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lockstitch.ids import WorkerId
    from lockstitch.runtime.worker import Worker

T = TypeVar("T")

_MOMENT_SECONDS = 0.2


def _all_gather(
    obj: T, worker_names: Collection[str] | None = None, timeout: float = UNSET_RPC_TIMEOUT
) -> dict[str, T]:
    """Returns what each of the workers `worker_names` (default all) brought to this call, by name.

    `timeout`: seconds for all of it, 0 for none; by default the calls take the default timeout,
    and whoever waits for others to come waits for ever. Raises `RuntimeError`: a timeout, a dead
    worker, or an error of a worker that this one told the result.
    """
    worker = current_worker()
    members = worker.service(Quiescence).members()
    if worker_names:
        members = {name: worker.agent.resolve(name).worker for name in worker_names}
    objects = _meet(worker, Attendance.of(members, worker.name), obj, timeout)
    return {name: objects.get(name) for name in members}  # type: ignore[misc]


def _meet(worker: Worker, attendance: Attendance, obj: object, timeout: float) -> Mapping[str, Any]:
    """Returns what those who meet have brought, by name, but for None."""
    quiescence = worker.service(Quiescence)
    barrier_id = quiescence.barriers.begin(attendance)
    limit = TimeLimit(worker.clock, max(timeout, 0.0))
    try:
        barrier = quiescence.barriers.get(barrier_id)
        with quiescence.calling_off(barrier_id, barrier, parent_may_be_late=True):
            # Who brings None is not named: a barrier shall not send all names to all.
            _gather_to_leader(barrier_id, worker.name, {} if obj is None else {worker.name: obj})
            quiescence.wait_for(barrier_id, barrier, barrier.ready, limit.remaining or None)
            objects: dict[str, Any] = {}
            for of_subtree in barrier.brought.values():
                objects.update(of_subtree)
            for parent in barrier.neighbours_above:
                contribution = (barrier_id, worker.name, objects)
                seconds = limit.remaining if timeout > 0 else timeout
                worker.agent.outgoing.call(parent, _gather_to_leader, contribution, None, seconds)
                # A moment more: the parent knows better who is missing, and says so.
                longer = limit.remaining + _MOMENT_SECONDS if timeout > 0 else None
                quiescence.wait_for(barrier_id, barrier, barrier.settled, longer)
                objects = barrier.result
        _broadcast(worker, barrier.neighbours_below, barrier_id, objects, timeout)
        return objects
    finally:
        quiescence.barriers.end(barrier_id)


def _broadcast(
    worker: Worker,
    followers: Collection[WorkerId],
    barrier_id: str,
    objects: Mapping[str, Any],
    timeout: float,
) -> None:
    """Sends the objects of all to the children. Raises `RuntimeError` naming those that do not
    answer."""
    agent = worker.agent
    futures = {
        agent.info_of(to).name: agent.outgoing.call_async(
            to, _broadcast_to_followers, (barrier_id, objects), None, timeout
        )
        for to in followers
    }
    errors: dict[str, RuntimeError] = {}
    for name, future in futures.items():
        try:
            future.wait()
        except RuntimeError as error:
            errors[name] = error
    if errors:
        seconds = agent.default_timeout if timeout < 0 else timeout
        first = next(iter(errors.values()))
        raise RuntimeError(
            f"Followers {list(errors)} timed out in _all_gather after {seconds:.2f} seconds. "
            f"The first exception is {text_of(first)}"
        ) from first


@needed
def _gather_to_leader(
    sequence_id: str, worker_name: str, obj: object, worker_names: Collection[str] | None = None
) -> None:
    """Runs on the parent: a child has come, with what all below it brought."""
    del worker_names  # the leader knows whom it waits for
    current_worker().service(Quiescence).barriers.bring(sequence_id, worker_name, obj)


@needed
def _broadcast_to_followers(sequence_id: str, objects_map: Mapping[str, object]) -> None:
    """Runs on a child: all have come, and brought these objects."""
    current_worker().service(Quiescence).barriers.announce(sequence_id, objects_map)


for _function in (_gather_to_leader, _broadcast_to_followers):
    _function.__module__ = "lockstitch.rpc.api"


def _barrier(worker_names: Collection[str]) -> None:
    """Returns when all these workers have called it. Raises `RuntimeError` as `_all_gather`
    does."""
    _all_gather(None, worker_names)


def _wait_all_workers(timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Returns when all workers have called it and no call is under way anywhere, however long a
    chain of calls that nobody waited for. May be called again.

    `timeout` in seconds, 0 for none. Raises `RuntimeError` as `_all_gather` does.
    """
    worker = current_worker()
    limit = TimeLimit(worker.clock, timeout)
    quiescence = worker.service(Quiescence)
    quiescence.wait_until_all_rest(timeout or None)
    _meet(worker, quiescence.attendance(), None, limit.remaining)
