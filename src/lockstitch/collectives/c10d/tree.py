"""Along which tree the ranks of a large session talk to rank 0, so that nobody has many to talk to.

The first rank of each host speaks for the others of it. Where there are more hosts than may talk to
one (the *fan-in*, 64) these speakers talk to speakers, in as many levels as it takes, and no level
is wider than it has to be:

                    rank 0
         ┌───────┬────┴──────┬───────────┐
       rank 1  rank 2 …   speaker of   speaker of …
                          host 1       host 2
                       ┌────┴─────┬─────────┐
                     ranks of   speaker of …
                     host 1     host 24

Up to 64 ranks talk to rank 0 themselves. All ranks work out the same tree; no I/O here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOBODY: Final = -1


@dataclass(frozen=True)
class Place:
    """Where a rank stands in the tree."""

    rank: int
    parent: int
    """To whom it talks; `NOBODY` for rank 0."""
    branches: Mapping[int, tuple[int, ...]]
    """Who talks to it, and for whom, itself included; the ranks ascend."""

    @property
    def is_speaker(self) -> bool:
        """Whether it speaks for others."""
        return self.parent != NOBODY and bool(self.branches)

    @property
    def speakers(self) -> tuple[int, ...]:
        """Which of those that talk to it speak for others."""
        return tuple(branch for branch, ranks in self.branches.items() if len(ranks) > 1)


def place_of(rank: int, hosts: Sequence[int], fan_in: int) -> Place:
    """Returns the place of a rank. `hosts`: the host of each rank; they are numbered from 0 in the
    order in which their first rank comes. `fan_in`: how many may talk to one, besides those of its
    own host."""
    size = len(hosts)
    if size <= fan_in:
        others = {other: (other,) for other in range(1, size)}
        return Place(rank, NOBODY if rank == 0 else 0, others if rank == 0 else {})
    of_host: list[list[int]] = [[] for _ in range(max(hosts) + 1)]
    for each, host in enumerate(hosts):
        of_host[host].append(each)
    host, leaders = hosts[rank], [ranks[0] for ranks in of_host]
    if rank != leaders[host]:
        return Place(rank, leaders[host], {})
    arity = _arity(len(of_host), fan_in)
    branches: dict[int, tuple[int, ...]] = {other: (other,) for other in of_host[host][1:]}
    for below in range(host * arity + 1, min(host * arity + arity + 1, len(of_host))):
        branches[leaders[below]] = tuple(sorted(_all_below(below, arity, of_host)))
    return Place(rank, leaders[(host - 1) // arity] if host else NOBODY, branches)


def _arity(hosts: int, fan_in: int) -> int:
    """Returns to how many speakers each talks: the fewest for as many levels as it takes."""
    levels = 1
    while _most_hosts(fan_in, levels) < hosts:
        levels += 1
    arity = 1
    while _most_hosts(arity, levels) < hosts:
        arity += 1
    return arity


def _most_hosts(arity: int, levels: int) -> int:
    return sum(arity**level for level in range(levels + 1))


def _all_below(host: int, arity: int, of_host: Sequence[Sequence[int]]) -> list[int]:
    """Returns the ranks of a host and of all hosts below it."""
    found: list[int] = []
    first, count = host, 1
    while first < len(of_host):
        for each in range(first, min(first + count, len(of_host))):
            found += of_host[each]
        first, count = first * arity + 1, count * arity
    return found
