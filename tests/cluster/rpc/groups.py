"""A group in one process that workers join, leave and die in."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from torch.distributed import HashStore

from lockstitch.clock import SYSTEM_CLOCK
from lockstitch.errors import LockstitchError
from lockstitch.rendezvous import host_identity
from lockstitch.rpc import leaving
from lockstitch.rpc.admission import Invitation, JoinRequest
from lockstitch.rpc.joining import join_dynamic_group
from lockstitch.rpc.membership import Membership
from lockstitch.rpc.startup import plug_services
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.worker import Worker
from lockstitch.testing.time_limits import ActiveTimeLimit
from lockstitch.testing.traffic import CountingNetwork

if TYPE_CHECKING:
    from lockstitch.testing.faults import Faults

JOIN_SECONDS = 60.0


class LocalGroup:
    """A context manager; workers come by `join`."""

    def __init__(self, *names: str, faults: Faults | None = None) -> None:
        self.network = CountingNetwork(SYSTEM_CLOCK, faults)
        # A frame that is late may have been the one that named a function.
        self._interned = AgentOptions().interned_functions if faults is None else 0
        self.store = HashStore()
        self.workers: dict[str, Worker] = {}
        self._names = names

    def __enter__(self) -> LocalGroup:
        for name in self._names:
            self.join(name)
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self.workers.values():
            worker.close()

    def __getitem__(self, name: str) -> Worker:
        return self.workers[name]

    def join(self, name: str, rank: int = -1, *, through: str | None = None) -> Worker:
        transport = self.network.transport(name)
        listener = transport.listen()
        join_request = JoinRequest(name, rank, (listener.address,), host_identity())
        options = AgentOptions(default_timeout=JOIN_SECONDS, interned_functions=self._interned)
        store = self.store
        if through is not None:
            store = Invitation(membership(self[through]).addresses[0])
        try:
            place = join_dynamic_group(store, join_request, transport, options, JOIN_SECONDS)
        except BaseException:
            transport.close()
            raise
        worker = Worker(place.me, place.directory, transport, options=options)
        service = place.make_membership(worker)
        worker.agent.on_close(service.close)
        plug_services(worker, service)
        worker.agent.accept_at(listener)
        worker.start()
        service.begin()
        self.workers[name] = worker
        return worker

    def leave(self, name: str) -> None:
        """The worker leaves in good order."""
        worker = self.workers.pop(name)
        leaving.leave_alone(worker, JOIN_SECONDS)
        leaving.finish(worker, ignore_leaks=True)

    def kill(self, name: str) -> Worker:
        """The worker dies, as the others see it."""
        self.network.kill(name)
        worker = self.workers.pop(name)
        worker.close()
        return worker


def membership(worker: Worker) -> Membership:
    return worker.service(Membership)


def names(worker: Worker) -> list[str]:
    return [info.name for info in membership(worker).present()]


def wait_until_all_see(group: LocalGroup, *expected: str) -> None:
    """Returns when every worker of the group has these for the roster."""
    time_limit = ActiveTimeLimit(60)
    nobody = threading.Event()
    while any(sorted(names(each)) != sorted(expected) for each in group.workers.values()):
        if time_limit.is_over():
            raise LockstitchError(f"{[(n, names(w)) for n, w in group.workers.items()]}")
        nobody.wait(0.005)
