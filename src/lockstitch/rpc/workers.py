"""Who is in the group, as programs ask it: now, in a while, and whenever it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.rpc.admission import Invitation
from lockstitch.rpc.constants import UNSET_RPC_TIMEOUT
from lockstitch.rpc.membership import Membership
from lockstitch.runtime.worker import PROCESS, current_worker, has_current_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstitch.ids import WorkerInfo
    from lockstitch.rpc.announcer import MembershipEvent
    from lockstitch.runtime.worker import Worker


def get_worker_infos() -> list[WorkerInfo]:
    """Returns all workers that are in the group now, by rank, this one too; it asks nobody.

    A worker that died is missing as soon as one of the others has noticed.
    """
    return current_worker().service(Membership).present()


def wait_for_worker(
    name: str, timeout: float = UNSET_RPC_TIMEOUT, *, after: WorkerInfo | None = None
) -> WorkerInfo:
    """Returns the worker of that name as soon as it is in the group.

    `timeout`: seconds, 0 for none, by default that of calls. `after`: another life of the worker
    than this one, for who waits for the replacement of one that died. Raises `RpcTimeoutError`,
    which says who is in; `RpcError` in a group with a `world_size`, where nobody can come.
    """
    worker = current_worker()
    seconds = worker.agent.default_timeout if timeout < 0 else timeout
    return worker.service(Membership).wait_for(name, seconds, after)


def add_membership_callback(callback: Callable[[MembershipEvent], object]) -> Callable[[], None]:
    """Calls `callback(event)` for each other worker that joins, leaves or dies; returns a function
    that ends that.

    First it is told of all who are in already, as `joined`, so that nothing is missed in between.
    Callbacks run one after the other, events in their order, on a thread of their own; they may
    call other workers. What one raises is printed at once, and raised by `shutdown`; the others are
    told all the same. May be called before `init_rpc`: it is then for the worker made there.
    """
    if has_current_worker():
        return current_worker().service(Membership).add_callback(callback)
    return _Waiting(callback).remove


class _Waiting:
    """A callback that was added before there was a worker."""

    def __init__(self, callback: Callable[[MembershipEvent], object]) -> None:
        self._callback = callback
        self._remove: Callable[[], None] | None = None
        PROCESS.before_worker.append(self._begin)

    def _begin(self, worker: Worker) -> None:
        self._remove = worker.service(Membership).add_callback(self._callback)

    def remove(self) -> None:
        if self._begin in PROCESS.before_worker:
            PROCESS.before_worker.remove(self._begin)
        if self._remove is not None:
            self._remove()


def begin_callbacks(worker: Worker) -> None:
    """Adds the callbacks that were added before the process had its worker."""
    waiting, PROCESS.before_worker = PROCESS.before_worker, []
    for begin in waiting:
        begin(worker)


def invitation() -> str:
    """Returns the `init_method` by which others join this worker's group through this worker, which
    need not be the first: `lockstitch://host:port`, or `lockstitch:///path` for workers of this
    host only, where this worker has no `address`.

    Raises `RuntimeError` in a group with a `world_size`.
    """
    worker = current_worker()
    if worker.service(Membership).is_static:
        raise RuntimeError("nobody can join a group of a fixed world_size")
    addresses = worker.service(Membership).addresses
    best = [each for each in addresses if each.startswith("tcp:")] or list(addresses)
    return str(Invitation(best[0]))
