"""Several hosts with several ranks each: the ranks of a host reduce among themselves first.

    host A:  rank 0 ─┐ shared memory      host B:  rank 2 ─┐ shared memory
             rank 1 ─┴── sum of A ──── process group ── sum of B ──┴─ rank 3

One rank of each host, its *leader*, reduces the hosts' sums over the network; the others get the
result from it through shared memory. Every byte crosses the network once for each host instead of
once for each rank. Only reductions take this route; whatever moves without being reduced goes by
the process group of all ranks.

Inside, orders are performed one at a time and in the same order everywhere, so what the ranks of a
host do among themselves needs no names: the nth operation of one meets the nth of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstitch.collectives.c10d.group_operations import ProcessGroupOperations
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.requests import GLOBAL_SET, ReduceOp, Reduction

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

    from lockstitch.collectives.session import Session
    from lockstitch.collectives.topology import Topology

# Process groups of leaders are told from those of all ranks of a set by their ids.
_LEADERS = 1 << 20


class HierarchicalOperations(ProcessGroupOperations):
    """Group operations whose reductions go through `local`, the session of this host's ranks."""

    def __init__(
        self,
        topology: Topology,
        store: Store,
        local: Session,
        seconds: float = 60.0,
        address: str | None = None,
        connect_seconds: float | None = None,
    ) -> None:
        super().__init__(topology.rank, store, "cpu", seconds, address, connect_seconds)
        self._topology = topology
        self._local = local
        self._local_sets: dict[tuple[int, ...], int] = {topology.local_ranks: GLOBAL_SET}
        """The process sets of the local session, by the ranks that they have."""

    def open_set(self, process_set: ProcessSet) -> None:
        super().open_set(process_set)
        members = self._members_here(process_set)
        if len(members) > 1 and members not in self._local_sets:
            local_ranks = self._topology.local_ranks
            added = self._local.add_process_set(local_ranks.index(rank) for rank in members)
            self._local_sets[members] = added.id
        leaders = self._leaders(process_set)
        if len(leaders) > 1:
            super().open_set(ProcessSet(process_set.id + _LEADERS, leaders))

    def close_set(self, process_set: ProcessSet) -> None:
        super().close_set(process_set)
        super().close_set(ProcessSet(process_set.id + _LEADERS, ()))

    def reduce(self, flat: torch.Tensor, op: ReduceOp, process_set: ProcessSet) -> None:
        members = self._members_here(process_set)
        leaders = self._leaders(process_set)
        reduction = Reduction(ReduceOp.SUM if op is ReduceOp.AVERAGE else op)
        name = f"{process_set.id}.{','.join(map(str, members))}"
        if len(members) > 1:
            self._reduce_locally(flat, reduction, name, members)
        if self._rank == members[0] and len(leaders) > 1:
            super().reduce(flat, op, ProcessSet(process_set.id + _LEADERS, leaders))
        if len(members) > 1 and len(leaders) > 1:
            self._hand_round(flat, name, members)

    def abort(self) -> None:
        self._local.shutdown()
        super().abort()

    def close(self) -> None:
        self._local.shutdown()
        super().close()

    # ------------------------------------------------------------ inside

    def _reduce_locally(
        self, flat: torch.Tensor, reduction: Reduction, name: str, members: tuple[int, ...]
    ) -> None:
        local = self._local
        set_id = self._local_sets[members]
        local.wait(
            local.allreduce(flat, reduction, name=f"{name}.reduce", process_set=set_id, output=flat)
        )

    def _hand_round(self, flat: torch.Tensor, name: str, members: tuple[int, ...]) -> None:
        local = self._local
        root = self._topology.local_ranks.index(members[0])
        set_id = self._local_sets[members]
        local.wait(
            local.broadcast(flat, root, name=f"{name}.result", process_set=set_id, output=flat)
        )

    def _members_here(self, process_set: ProcessSet) -> tuple[int, ...]:
        """The set's ranks on this host."""
        return tuple(rank for rank in self._topology.local_ranks if process_set.includes(rank))

    def _leaders(self, process_set: ProcessSet) -> tuple[int, ...]:
        """The first of the set's ranks on each host that has any."""
        first: dict[int, int] = {}
        for rank in process_set.ranks:
            first.setdefault(self._topology.hosts[rank], rank)
        return tuple(sorted(first.values()))
