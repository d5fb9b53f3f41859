"""Several workers in one process: a whole cluster without ports, inside one test.

    with LocalCluster(3, faults=Faults().drop(ForkAccept, nth=1)) as cluster:
        with cluster["worker0"].active():
            rref = rpc.remote("worker1", make_model)

The workers are real: the same agents, references and backward passes as between processes, over the
in-memory transport. Time may be a `ManualClock`, mishaps are scripted by `Faults`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.ids import WorkerId, WorkerInfo
from lockstitch.rpc.membership import StaticMembership
from lockstitch.rpc.startup import plug_services
from lockstitch.runtime.agent import AgentOptions
from lockstitch.runtime.worker import Worker
from lockstitch.testing.traffic import CountingNetwork, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lockstitch.testing.faults import Faults
    from lockstitch.transport.base import Connection, Transport

T = TypeVar("T")


class LocalDirectory:
    """The `Directory` of one worker of a `LocalCluster`, which connects by its own transport."""

    is_fixed = True

    def __init__(self, members: list[WorkerInfo], addresses: dict[str, str]) -> None:
        self._members = members
        self._by_key: dict[object, WorkerInfo] = {}
        for member in members:
            for key in (member.name, member.id, member.worker):
                self._by_key[key] = member
        self._addresses = addresses
        self.transport: Transport | None = None

    def find(self, key: str | int | WorkerId) -> WorkerInfo | None:
        """Returns the member of that name, rank or identity; None when there is none."""
        return self._by_key.get(key)

    def members(self) -> Sequence[WorkerInfo]:
        """Returns all members."""
        return self._members

    def connect(self, peer: WorkerInfo, timeout_seconds: float) -> Connection:
        """Opens a connection to a member."""
        assert self.transport is not None
        return self.transport.connect(self._addresses[peer.name], timeout_seconds)

    def elsewhere(self, _worker: WorkerId) -> str:
        """Returns nothing: all are here."""
        return ""


class LocalCluster:
    """A context manager of workers in this process; `cluster["worker1"]`, or `cluster[1]`, is one
    of them.

    `size`: how many (2), named worker0, worker1, …, or their names. `faults`: a script of mishaps;
    without one there are none. `clock`: the workers' time, perhaps a `ManualClock`; by default that
    of the system. `options`: those of every agent.
    """

    def __init__(
        self,
        size: int | Sequence[str] = 2,
        *,
        faults: Faults | None = None,
        clock: Clock = SYSTEM_CLOCK,
        options: AgentOptions | None = None,
    ) -> None:
        self.names = [f"worker{rank}" for rank in range(size)] if isinstance(size, int) else [*size]
        self.clock = clock
        self.network = CountingNetwork(clock, faults)
        # A frame that is lost may have been the one that named a function.
        self._options = options or AgentOptions()
        if faults is not None:
            self._options = dataclasses.replace(self._options, interned_functions=0)
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> LocalCluster:
        infos = [WorkerInfo(name, rank) for rank, name in enumerate(self.names)]
        addresses: dict[str, str] = {}
        for info in infos:
            self._workers[info.name] = self._make(info, infos, addresses)
        for worker in self._workers.values():
            worker.start()
        return self

    def _make(self, info: WorkerInfo, infos: list[WorkerInfo], addresses: dict[str, str]) -> Worker:
        directory = LocalDirectory(infos, addresses)
        transport = directory.transport = self.network.transport(info.name)
        worker = Worker(info, directory, transport, clock=self.clock, options=self._options)
        listener = transport.listen()
        addresses[info.name] = listener.address
        worker.agent.accept_at(listener)
        membership = StaticMembership(worker)
        worker.agent.on_close(membership.close)
        plug_services(worker, membership)
        return worker

    def __exit__(self, *_exception: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def __getitem__(self, name: str | int) -> Worker:
        return self._workers[self.names[name] if isinstance(name, int) else name]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self.names)

    def run(self, name: str | int, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs `function` in this thread as code of that worker."""
        with self[name].active():
            return function(*args, **kwargs)

    def kill(self, name: str) -> None:
        """Has the worker die, as its peers see it."""
        self.network.kill(name)

    def is_dead(self, name: str) -> bool:
        """Whether that worker has been killed, by `kill` or by the script."""
        return self.network.is_dead(name)

    def reset(self, one: str, other: str) -> None:
        """Breaks all connections between the two."""
        self.network.reset(one, other)

    def traffic(self) -> Traffic:
        """Returns the count of what the workers have sent each other so far."""
        return self.network.traffic()

    @contextlib.contextmanager
    def partition(self, one: str, other: str) -> Iterator[None]:
        """A context manager within which frames between the two are lost."""
        self.network.partition(one, other)
        try:
            yield
        finally:
            self.network.heal(one, other)
