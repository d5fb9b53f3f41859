"""Where this rank stands: among all, on its host, and among its peers on other hosts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts count from 0 in the order in which their first rank comes. The *local* rank counts on
    one host, the *cross* rank over the hosts that have that local rank."""

    rank: int
    hosts: tuple[int, ...]
    """Which host each rank lives on."""

    @classmethod
    def of(cls, rank: int, host_names: Sequence[str]) -> Topology:
        """Makes the topology from the names of all ranks' hosts, in the order of ranks."""
        numbers: dict[str, int] = {}
        return cls(rank, tuple(numbers.setdefault(name, len(numbers)) for name in host_names))

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The global ranks on this host, ascending."""
        return self.ranks_of_host(self.hosts[self.rank])

    @property
    def local_rank(self) -> int:
        return self.local_ranks.index(self.rank)

    @property
    def local_size(self) -> int:
        return len(self.local_ranks)

    @property
    def cross_ranks(self) -> tuple[int, ...]:
        """The global ranks with this local rank, one for each host that has it."""
        local = self.local_rank
        of_hosts = [self.ranks_of_host(host) for host in range(self.host_count)]
        return tuple(ranks[local] for ranks in of_hosts if len(ranks) > local)

    @property
    def cross_rank(self) -> int:
        return self.cross_ranks.index(self.rank)

    @property
    def cross_size(self) -> int:
        return len(self.cross_ranks)

    @property
    def host_count(self) -> int:
        return max(self.hosts) + 1

    @property
    def is_homogeneous(self) -> bool:
        """Whether every host has the same number of ranks."""
        return len(set(Counter(self.hosts).values())) == 1

    def ranks_of_host(self, host: int) -> tuple[int, ...]:
        """The global ranks on one host, ascending."""
        return tuple(rank for rank, where in enumerate(self.hosts) if where == host)
