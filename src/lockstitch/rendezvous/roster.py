"""Who the members of a group are and where to reach them, and a table of members. No I/O here.

A member is published as JSON, never as a pickle: the store is open to strangers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import MAX_GENERATION, WorkerId, WorkerInfo
from lockstitch.link.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Member:
    """One worker as the others need to know it.

    `addresses` are where it listens, the best first; `host` is its `host_identity`, and `host_name`
    how people call it; `devices` is what its device maps say, as `rpc.device_maps` writes it;
    `kind` is what all others have to know of it, a text that most members have in common;
    `gateway` is where its host can be asked what the job does there, if it is this member that
    listens for that.
    """

    info: WorkerInfo
    addresses: tuple[str, ...]
    host: str
    devices: str = ""
    host_name: str = ""
    kind: str = ""
    gateway: str = ""

    @property
    def place(self) -> str:
        """Where it is, for messages to people."""
        return f"host {self.host_name}" if self.host_name else "another host"

    @property
    def id(self) -> WorkerId:
        """The member's rank and generation."""
        return self.info.worker

    def encode(self) -> str:
        """Returns the member's entry, as it is published in the store."""
        info = self.info
        where = (self.addresses, self.host)
        more = (self.devices, self.host_name, self.kind, self.gateway)
        entry = _Entry(info.name, info.id, info.generation, *where, *more)
        return _CODEC.encode(entry).decode()

    @classmethod
    def decode(cls, text: bytes) -> Member:
        """Makes a member of its entry. Raises `RemoteProtocolError` for what is none."""
        entry = _CODEC.decode(text)
        try:
            info = WorkerInfo(entry.name, entry.rank, entry.generation)
        except RuntimeError as error:
            raise RemoteProtocolError(f"{_COMPLAINT}: {text!r}") from error
        if info.id < 0 or not 0 <= info.generation <= MAX_GENERATION:
            raise RemoteProtocolError(f"the store holds an impossible worker: {text!r}")
        more = (entry.devices, entry.host_name, entry.kind, entry.gateway)
        return cls(info, entry.addresses, entry.host, *more)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A member as it is written in the store, where workers of other versions may look, too."""

    name: str
    rank: int
    generation: int
    addresses: tuple[str, ...]
    host: str
    devices: str = ""
    host_name: str = ""
    kind: str = ""
    gateway: str = ""


_COMPLAINT = (
    "the store holds no worker's entry, or that of a worker with a secret which this one was not "
    "given (LOCKSTITCH_SECRET or LOCKSTITCH_SECRET_FILE)"
)
_CODEC = Codec(_Entry, complaint=_COMPLAINT, by_name=True)


class Table:
    """Members by name, rank and `WorkerId`; a later life of a rank replaces the earlier."""

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._by_name: dict[str, Member] = {}
        self._by_rank: dict[int, Member] = {}
        for member in members:
            self.add(member)

    def add(self, member: Member) -> None:
        """Enters `member` instead of whoever had its name or its rank."""
        for former in (self._by_name.get(member.info.name), self._by_rank.get(member.info.id)):
            if former is not None:
                self.remove(former)
        self._by_name[member.info.name] = member
        self._by_rank[member.info.id] = member

    def remove(self, member: Member) -> None:
        """Strikes out exactly this life of the member; harmless when repeated."""
        entered = self._by_rank.get(member.info.id)
        if entered is not None and entered.id == member.id:  # infos are equal over generations
            del self._by_rank[member.info.id]
            del self._by_name[entered.info.name]

    def find(self, who: str | int | WorkerId) -> Member | None:
        """Returns the member of that name, rank or id; None when there is none."""
        if isinstance(who, str):
            return self._by_name.get(who)
        if isinstance(who, WorkerId):
            member = self._by_rank.get(who.rank)
            return member if member is not None and member.id == who else None
        return self._by_rank.get(who)

    def fetch(self, ranks: Iterable[int]) -> None:
        """Does nothing: all members are known."""

    def members(self) -> list[Member]:
        """Returns all members, by rank."""
        return [self._by_rank[rank] for rank in sorted(self._by_rank)]


def check_names_are_unique(members: Iterable[Member]) -> None:
    """Raises RuntimeError when two members have the same name."""
    ranks: dict[str, int] = {}
    for member in members:
        name, rank = member.info.name, member.info.id
        if ranks.setdefault(name, rank) != rank:
            raise RuntimeError(name_is_taken(name, ranks[name], rank))


def name_is_taken(name: str, one: int, other: int) -> str:
    """Returns the text of the error when two ranks have the same name."""
    return (
        f"RPC worker name {name} is not unique. Workers {one} and {other} share it; "
        "give each worker a name of its own."
    )
