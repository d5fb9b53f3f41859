"""What the ranks of a session publish where they meet, and what each checks of it.

All know all ranks' hosts and versions (`rendezvous.census`), and come to the same conclusions. What
only few need of a rank, an address say, is looked up by those.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstitch.collectives.rank_names import RankNames
from lockstitch.errors import CollectiveError
from lockstitch.link.addresses import host_and_port, is_loopback
from lockstitch.transport import TcpTransport
from lockstitch.versions import are_alike

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.rendezvous import StaticRoster

DOOR: Final = "door:"
"""Before the address at which a rank's shared memory may be entered."""
COORDINATOR: Final = "coordinator:"
"""Before the address of the coordinator; rank 0 publishes it."""
TOKEN: Final = "token:"
"""Before the word by which who comes there proves to have met rank 0."""


@dataclass(frozen=True)
class Kind:
    """What all ranks have to know of each: which Lockstitch and which torch it runs, and how its
    host is called where that is not found out."""

    version: str
    torch: str
    host: str

    def encode(self) -> str:
        """Returns it as `Member.kind`."""
        return f"{self.version} {self.torch} {self.host}"

    @classmethod
    def decode(cls, kind: str) -> Kind:
        """Returns what `encode` has written."""
        version, torch, host = (*kind.split(" ", 2), "", "")[:3]
        return cls(version, torch, host)


def place(roster: StaticRoster, rank: int) -> str:
    """Returns where a rank is, for people; nothing where that cannot be looked up any more."""
    with contextlib.suppress(RuntimeError):
        member = roster.find(rank)
        return "" if member is None else member.place
    return ""


def check_versions(kinds: Sequence[Kind], where: Callable[[int], str] = lambda _rank: "") -> None:
    """All ranks see at once that one runs another Lockstitch, whose messages and memory are laid
    out differently, or another torch, as workers of calls do. Says with it `where` a rank is."""
    _check_alike("lockstitch", [kind.version for kind in kinds], where)
    _check_alike("torch", [kind.torch for kind in kinds], where)


def _check_alike(what: str, versions: Sequence[str], where: Callable[[int], str]) -> None:
    for rank, version in enumerate(versions):
        if not are_alike(version, versions[0]):
            first, other = (f", on {it}," if (it := where(each)) else "" for each in (0, rank))
            raise CollectiveError(
                f"rank 0{first} runs {what} {versions[0]}, rank {rank}{other} {version}, and "
                "neither would understand the other; install the same on all ranks"
            )


def check_reach(roster: StaticRoster) -> None:
    """All ranks see at once that some of them will not come to rank 0."""
    address, machines = published(roster, 0, COORDINATOR), roster.census.hosts
    away = [rank for rank, machine in enumerate(machines) if machine != machines[0]]
    host, _ = host_and_port(address.removeprefix(TcpTransport.scheme))
    if away and is_loopback(host):
        places = [place(roster, rank) for rank in (0, away[0])]
        raise CollectiveError(
            f"rank 0, on {places[0]}, can be reached at {address} only, where "
            f"{RankNames().in_words(away)}, on another host ({places[1]}), cannot find it: set "
            "MASTER_ADDR (or HOROVOD_GLOO_RENDEZVOUS_ADDR) to an address or a name of rank 0's "
            "host that leads there from every host, on rank 0 too; or say on each host by "
            "LOCKSTITCH_ADDRESS or LOCKSTITCH_IFNAME which of its own addresses others use"
        )


def published(roster: StaticRoster, rank: int, what: str) -> str:
    """Returns what a rank has published under a prefix. Raises `CollectiveError` where that is
    nothing."""
    member = roster.find(rank)
    for address in () if member is None else member.addresses:
        if address.startswith(what):
            return address.removeprefix(what)
    raise CollectiveError(f"rank {rank} has published no {what.rstrip(':')}: it does not fit")
