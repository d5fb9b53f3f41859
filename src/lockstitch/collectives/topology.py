"""Where this rank stands: among all, on its host, and among its peers on other hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts count from 0 in the order in which their first rank comes. The *local* rank counts on
    one host, the *cross* rank over the hosts that have that local rank. All of it is worked out
    once, for a program may ask in each step."""

    rank: int
    hosts: tuple[int, ...]
    """Which host each rank lives on."""
    ranks_by_host: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """The global ranks on each host, ascending."""
    local_rank: int = field(init=False, repr=False, compare=False)
    cross_ranks: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The global ranks with this local rank, one for each host that has it."""
    cross_rank: int = field(init=False, repr=False, compare=False)
    is_homogeneous: bool = field(init=False, repr=False, compare=False)
    """Whether every host has the same number of ranks."""

    def __post_init__(self) -> None:
        by_host: list[list[int]] = [[] for _ in range(max(self.hosts) + 1)]
        for rank, host in enumerate(self.hosts):
            by_host[host].append(rank)
        local = by_host[self.hosts[self.rank]].index(self.rank)
        cross = tuple(ranks[local] for ranks in by_host if len(ranks) > local)
        worked_out = {
            "ranks_by_host": tuple(map(tuple, by_host)),
            "local_rank": local,
            "cross_ranks": cross,
            "cross_rank": cross.index(self.rank),
            "is_homogeneous": len({len(ranks) for ranks in by_host}) == 1,
        }
        for name, value in worked_out.items():
            object.__setattr__(self, name, value)

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
        return self.ranks_by_host[self.hosts[self.rank]]

    @property
    def local_size(self) -> int:
        return len(self.local_ranks)

    @property
    def cross_size(self) -> int:
        return len(self.cross_ranks)

    @property
    def host_count(self) -> int:
        return len(self.ranks_by_host)
