"""Ranks in a world whose workers do not change, and the variables in which each is told its own.
Values in, values out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class WorkerRanks:
    """The ranks of a worker: among all, among those of its host (`local_rank`), and among those
    that have the same local rank on their hosts (`cross_rank`)."""

    rank: int
    size: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def host_by_host(hosts: Sequence[str]) -> list[int]:
    """Returns workers, by the places of their hosts in the list, in the order that ranks are to
    have: those of a host are neighbours, and hosts come in the order of their first workers."""
    by_host: dict[str, list[int]] = {}
    for worker, host in enumerate(hosts):
        by_host.setdefault(host, []).append(worker)
    return [worker for workers in by_host.values() for worker in workers]


def ranks_on(hosts: Sequence[str]) -> list[WorkerRanks]:
    """Returns the ranks of each worker; `hosts` has the host of each rank."""
    sizes = Counter(hosts)
    alike = Counter(local for size in sizes.values() for local in range(size))
    on_host: Counter[str] = Counter()
    across: Counter[int] = Counter()
    made = []
    for rank, host in enumerate(hosts):
        local = on_host[host]
        here, there = (local, sizes[host]), (across[local], alike[local])
        made.append(WorkerRanks(rank, len(hosts), host, *here, *there))
        on_host[host] += 1
        across[local] += 1
    return made


def variables_of_ranks(ranks: WorkerRanks, master: tuple[str, int]) -> dict[str, str]:
    """Returns the variables that say who a worker is and where all meet. Each number has two names:
    that of `torchrun` and that of `horovodrun`."""
    numbers = {
        "RANK": ranks.rank,
        "WORLD_SIZE": ranks.size,
        "LOCAL_RANK": ranks.local_rank,
        "LOCAL_WORLD_SIZE": ranks.local_size,
        "MASTER_ADDR": master[0],
        "MASTER_PORT": master[1],
        "HOROVOD_RANK": ranks.rank,
        "HOROVOD_SIZE": ranks.size,
        "HOROVOD_LOCAL_RANK": ranks.local_rank,
        "HOROVOD_LOCAL_SIZE": ranks.local_size,
        "HOROVOD_CROSS_RANK": ranks.cross_rank,
        "HOROVOD_CROSS_SIZE": ranks.cross_size,
        "HOROVOD_HOSTNAME": ranks.host,
    }
    return {name: str(value) for name, value in numbers.items()}
