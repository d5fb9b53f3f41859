"""How the ranks of a process set find each other for operations between their devices by NCCL.

The first of them listens for the others at an address that all are told with the placements. The
process groups meet in the session's store.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstitch.collectives.c10d.backend import C10dBackend
from lockstitch.collectives.c10d.coordinator import Coordinator
from lockstitch.collectives.c10d.coordinator_link import (
    CoordinatorClient,
    CoordinatorServer,
    connect_to_coordinator,
)
from lockstitch.collectives.c10d.group_operations import GroupOperations
from lockstitch.collectives.c10d.link_options import LinkOptions
from lockstitch.collectives.placement import Placement, placed
from lockstitch.link.addresses import LOOPBACK, own_address
from lockstitch.link.ports import find_ports
from lockstitch.link.pulse import heartbeat_seconds
from lockstitch.rendezvous import host_identity
from lockstitch.rendezvous.store import host_of
from lockstitch.transport import TcpTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from lockstitch.collectives.c10d.messages import Message
    from lockstitch.collectives.options import SessionOptions
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSet, ProcessSets
    from lockstitch.collectives.topology import Topology
    from lockstitch.transport import Listener
    from lockstitch.trust import Secret


class NcclBootstrap:
    """How one rank of a session finds the others for NCCL. `store` is the session's own part of the
    store."""

    def __init__(
        self,
        topology: Topology,
        store: Store,
        options: SessionOptions,
        secret: Secret | None,
        sets: ProcessSets,
        pending: PendingOperations,
    ) -> None:
        self._topology = topology
        self._rank = topology.rank
        self._store = store
        self._host = options.host or host_identity()
        self._options = options
        self._secret = secret
        self._sets = sets
        self._pending = pending
        self._ports = find_ports(options.port_range, os.environ)
        self._open: dict[int, tuple[TcpTransport, Listener]] = {}
        self._lock = threading.Lock()

    def announce(self, process_set: ProcessSet, device: torch.device | None) -> Placement:
        """Returns what to tell the others: that this rank's tensors are on that device. Begins to
        listen for the other ranks if this one is the set's first."""
        mine = self._placed(device)
        if self._rank != process_set.ranks[0]:
            return mine
        with self._lock:
            if process_set.id not in self._open:
                transport = TcpTransport(self._own_address(), self._ports)
                self._open[process_set.id] = transport, transport.listen()
            _, listener = self._open[process_set.id]
        return replace(mine, address=listener.address, word=secrets.token_hex(16))

    def connect(
        self, process_set: ProcessSet, device: torch.device | None, first: Placement
    ) -> C10dBackend:
        """Connects all ranks of the set, each of which calls this; returns a backend for tensors on
        devices."""
        rank, coordinator_rank = self._rank, process_set.ranks[0]
        seconds = self._options.timeout_seconds
        link_options = replace(
            LinkOptions.of(first.word, self._secret, seconds, coordinator_rank),
            heartbeat=heartbeat_seconds(self._options.heartbeat_seconds, os.environ),
        )

        def connect(hear: Callable[[Message], None]) -> CoordinatorServer | CoordinatorClient:
            if rank == coordinator_rank:
                with self._lock:
                    transport, listener = self._open.pop(process_set.id)
                coordinator = Coordinator(
                    self._topology.size, self._options.fusion_bytes, self._pending.names
                )
                others = process_set.ranks[1:]
                return CoordinatorServer(
                    coordinator, transport, listener, hear, link_options, expected=others
                )
            line = connect_to_coordinator(
                TcpTransport(LOOPBACK), first.address, rank, link_options, self._pending.check
            )
            return CoordinatorClient(rank, line, hear, link_options)

        store = PrefixStore(f"devices of {process_set.id}", self._store)
        groups = self._groups(store, device)
        return C10dBackend(
            groups,
            self._sets,
            self._pending,
            connect,
            "nccl",
            only_for=process_set,
            start_seconds=seconds,
        )

    def cancel(self, process_set: ProcessSet) -> None:
        """Stops listening for the other ranks; harmless when repeated."""
        with self._lock:
            opened = self._open.pop(process_set.id, None)
        if opened is not None:
            transport, listener = opened
            listener.close()
            transport.close()

    # ------------------------------------------------------------ inside

    def _placed(self, device: torch.device | None) -> Placement:
        return placed(device, self._host, self._options.device_operations)

    def _groups(self, store: Store, device: torch.device | None) -> GroupOperations:
        return GroupOperations(self._rank, store, str(device), self._options.timeout_seconds)

    def _own_address(self) -> str:
        """Returns the address at which the ranks of other hosts reach this one."""
        if self._topology.host_count == 1:
            return LOOPBACK
        place = host_of(self._store) or os.environ.get("MASTER_ADDR")
        return own_address(place, self._options.address)
