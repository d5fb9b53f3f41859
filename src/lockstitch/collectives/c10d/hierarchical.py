"""Several hosts with several ranks each: the ranks of a host reduce among themselves first.

    host A:  rank 0 ─┐ shared memory      host B:  rank 2 ─┐ shared memory
             rank 1 ─┴── sum of A ──── process group ── sum of B ──┴─ rank 3

One rank of each host, its *leader*, reduces the hosts' sums over the network; the others get the
result from it through shared memory. Every byte crosses the network once for each host instead of
once for each rank. Vectors go in chunks: at the same time some are being reduced on the host, some
are on the network, and some are handed round. Only reductions take this route; whatever moves
without being reduced goes by the process group of all ranks.

Inside, orders are performed one at a time and in the same order everywhere, so what the ranks of a
host do among themselves needs no names: the nth operation of one meets the nth of the others.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from lockstitch.collectives.c10d.group_operations import GroupOperations
from lockstitch.collectives.requests import GLOBAL_SET, ReduceOp, Reduction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch
    from torch.distributed.distributed_c10d import Store

    from lockstitch.collectives.arithmetic import Scale
    from lockstitch.collectives.c10d.peer_connections import PeerConnections
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.rank_names import RankNames
    from lockstitch.collectives.requests import Request
    from lockstitch.collectives.session import Session
    from lockstitch.collectives.topology import Topology

# So many chunks are being reduced on a host before the first of them goes over the network.
_AHEAD = 2


class HierarchicalOperations(GroupOperations):
    """Group operations whose reductions go through `local`, the session of this host's ranks."""

    # For each chunk the ranks of a host agree twice among themselves.
    least_chunk_bytes = 512 << 10

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        topology: Topology,
        store: Store,
        local: Session,
        seconds: float = 60.0,
        address: str | None = None,
        connect_seconds: float | None = None,
        *,
        silence_seconds: float = 0.0,
        names: RankNames | None = None,
        peers: PeerConnections | None = None,
    ) -> None:
        places = (topology.rank, store, "cpu", seconds, address, connect_seconds)
        super().__init__(*places, silence_seconds=silence_seconds, names=names, peers=peers)
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

    def may_send_ahead(self, request: Request, process_set: ProcessSet) -> bool:
        # Where several ranks of a host are in it, it is their sum that crosses the network.
        is_apart = self._reducing(process_set) == process_set.ranks
        return is_apart and super().may_send_ahead(request, process_set)

    def reduce(
        self,
        flat: torch.Tensor,
        op: ReduceOp,
        scale: Scale,
        process_set: ProcessSet,
        sent: Sequence[int] = (),
    ) -> None:
        members, leaders = self._members_here(process_set), self._reducing(process_set)
        chunks = self._cut(flat)
        sums = self._host_sums(chunks, op, process_set, members)
        if len(leaders) == 1:
            for chunk in sums:
                scale.apply_(chunk)
        elif self._rank == members[0]:
            reduced = self._reduced(sums, chunks, op, scale, process_set, sent)
            self._hand_round(reduced, process_set, members)
        else:
            self._hand_round(sums, process_set, members)

    def abort(self) -> None:
        self._local.shutdown()
        super().abort()

    def close(self) -> None:
        self._local.shutdown()
        super().close()

    # ------------------------------------------------------------ inside

    def _host_sums(
        self,
        chunks: Iterable[torch.Tensor],
        op: ReduceOp,
        process_set: ProcessSet,
        members: tuple[int, ...],
    ) -> Iterator[torch.Tensor]:
        """Reduces the chunks among the set's ranks of this host; some of them are ahead."""
        if len(members) == 1:
            yield from chunks
            return
        local, set_id = self._local, self._local_sets[members]
        reduction = Reduction(ReduceOp.SUM if op is ReduceOp.AVERAGE else op)
        ahead: collections.deque[Handle[torch.Tensor]] = collections.deque()
        for number, chunk in enumerate(chunks):
            name = f"{process_set.id}.{number}.sum"
            ahead.append(
                local.allreduce(chunk, reduction, name=name, process_set=set_id, output=chunk)
            )
            if len(ahead) > _AHEAD:
                yield local.wait(ahead.popleft())
        for handle in ahead:
            yield local.wait(handle)

    def _hand_round(
        self,
        chunks: Iterable[torch.Tensor],
        process_set: ProcessSet,
        members: tuple[int, ...],
    ) -> None:
        """Gives the chunks of the leader to the set's ranks of this host, each as soon as it is
        there."""
        if len(members) == 1:
            collections.deque(chunks, maxlen=0)
            return
        local, set_id = self._local, self._local_sets[members]
        root = self._topology.local_ranks.index(members[0])
        handles = []
        for number, chunk in enumerate(chunks):
            name = f"{process_set.id}.{number}.result"
            handles.append(
                local.broadcast(chunk, root, name=name, process_set=set_id, output=chunk)
            )
        for handle in handles:
            local.wait(handle)

    def _members_here(self, process_set: ProcessSet) -> tuple[int, ...]:
        """The set's ranks on this host."""
        return tuple(rank for rank in self._topology.local_ranks if process_set.includes(rank))

    def _reducing(self, process_set: ProcessSet) -> tuple[int, ...]:
        """The leaders: the first of the set's ranks on each host that has any."""
        first: dict[int, int] = {}
        for rank in process_set.ranks:
            first.setdefault(self._topology.hosts[rank], rank)
        return tuple(sorted(first.values()))
