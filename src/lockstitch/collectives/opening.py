"""The way into a session: the ranks find each other through a store, and choose a backend.

Every rank publishes its host and where it can be reached; when all have, the hosts tell who stands
where and which backend serves. Sessions are numbered by each rank for itself, so the nth of one
rank meets the nth of all others: a session may be opened after one was shut down, on the same store
and as often as one likes.

A store that a URL names is kept open until the process ends. Rank 0 may host it, and would
otherwise take it down under ranks that are on their way into the next session.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstitch.clock import SYSTEM_CLOCK, Clock
from lockstitch.collectives.memory import LocalSessions
from lockstitch.collectives.options import SessionOptions
from lockstitch.collectives.outstanding import Outstanding
from lockstitch.collectives.process_sets import ProcessSets
from lockstitch.collectives.session import Session
from lockstitch.collectives.shared_memory.backend import SharedMemoryBackend
from lockstitch.collectives.shared_memory.introduction import Doorway, introduce_oneself
from lockstitch.collectives.shared_memory.segment import Geometry, create
from lockstitch.collectives.topology import Topology
from lockstitch.errors import CollectiveError
from lockstitch.rendezvous import Roster, host_identity, join, open_store

if TYPE_CHECKING:
    from lockstitch.collectives.backend import Backend
    from lockstitch.collectives.options import BackendName

_PREFIX = "reductions"
_HOST, _DOOR = "host:", "door:"


def open_session(
    rank: int,
    size: int,
    store: str | Store = "env://",
    options: SessionOptions | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Session:
    """Meets the other ranks and returns this one's session; all ranks must call it.

    `store` is a store of torch, or names one: `env://` (MASTER_ADDR and MASTER_PORT, as every
    launcher sets them), `tcp://host:port`, `file://path`. A session of one rank needs none.
    Raises RuntimeError when ranks are missing after `options.timeout_seconds`.
    """
    chosen = options or SessionOptions()
    if size == 1:
        return LocalSessions(
            1,
            clock=clock,
            stall_warning_seconds=chosen.stall_warning_seconds,
            stall_failure_seconds=chosen.stall_failure_seconds,
        )[0]
    outstanding = Outstanding(
        rank,
        clock,
        stall_warning_seconds=chosen.stall_warning_seconds,
        stall_failure_seconds=chosen.stall_failure_seconds,
    )
    opened = PrefixStore(_PREFIX, _opened_store(store, rank, size, chosen.timeout_seconds))
    door = Doorway()
    try:
        host = chosen.host or host_identity()
        addresses = (_HOST + host, _DOOR + door.address)
        roster = join(opened, f"rank{rank}", rank, size, addresses, chosen.timeout_seconds)
        topology = Topology.of(rank, _published(roster, size, _HOST))
        backend = _backend(roster, topology, door, chosen, outstanding)
    finally:
        door.close()
    return Session(topology, backend, outstanding, ProcessSets(size))


def _backend(
    roster: Roster,
    topology: Topology,
    door: Doorway,
    options: SessionOptions,
    outstanding: Outstanding,
) -> Backend:
    name = _chosen_backend(topology, options)
    if name == "shared_memory":
        if topology.host_count > 1:
            raise CollectiveError(
                f"shared memory needs all ranks on one host, but there are {topology.host_count}"
            )
        doors = _published(roster, topology.size, _DOOR)
        return share_memory(topology, doors, door, options, outstanding)
    raise CollectiveError(f"there is no backend {name!r}")


def share_memory(
    topology: Topology,
    doors: list[str],
    door: Doorway,
    options: SessionOptions,
    outstanding: Outstanding,
) -> SharedMemoryBackend:
    """The backend of the ranks of this host; they are numbered from 0."""
    local_rank, count = topology.local_rank, topology.local_size
    geometry = Geometry(count, arena_bytes=options.arena_bytes)
    if local_rank == 0:
        known = door.receive_all(count, create(geometry), options.timeout_seconds)
    else:
        first = doors[topology.local_ranks[0]]
        known = introduce_oneself(first, local_rank, count, options.timeout_seconds)
    return SharedMemoryBackend(local_rank, geometry, known, outstanding)


def _chosen_backend(topology: Topology, options: SessionOptions) -> BackendName:
    if options.backend != "auto":
        return options.backend
    if options.device != "cpu":
        return "c10d"
    if topology.host_count == 1:
        return "shared_memory"
    return "hierarchical" if topology.size > topology.host_count else "c10d"


def _published(roster: Roster, size: int, what: str) -> list[str]:
    """What each rank has published under a prefix, in the order of ranks."""
    found = []
    for rank in range(size):
        member = roster.find(rank)
        assert member is not None
        found += [each.removeprefix(what) for each in member.addresses if each.startswith(what)]
    return found


def _opened_store(store: str | Store, rank: int, size: int, timeout_seconds: float) -> Store:
    if isinstance(store, Store):
        return open_store(store, rank, size, timeout_seconds)
    place = tuple(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    return _kept_store(os.getpid(), place, store, rank, size, timeout_seconds)


@functools.lru_cache(maxsize=8)
def _kept_store(
    _pid: int, _place: tuple[str | None, ...], url: str, rank: int, size: int, timeout: float
) -> Store:
    return open_store(url, rank, size, timeout)
