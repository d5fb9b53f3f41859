"""Who is and was in a group that workers join and leave: of each rank the latest life. No I/O here.

Two members may have heard different things, in a different order. What either knows of a rank is a
point on a line: a later life comes after an earlier one, and within a life *in*, *died*, *left*. To
learn from each other is to take the later point, rank by rank. It does not matter in which order,
how often or by which way that is done: who has heard the same knows the same (the tables are a
join-semilattice, as in Shapiro et al., "Conflict-free Replicated Data Types", 2011).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import MAX_GENERATION, WorkerId, WorkerInfo
from lockstitch.rendezvous.roster import Member

if TYPE_CHECKING:
    from collections.abc import Iterable

Plain = tuple[str, int, int, tuple[str, ...], str, int, str, int, str]
"""A life as plain values, for messages."""


class Standing(enum.IntEnum):
    """How a life stands; it only ever moves on."""

    IN = 0
    DIED = 1
    LEFT = 2


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a rank, as all members know it.

    `age`: in which order lives were admitted, the eldest has the smallest. `mark`: what the worker
    itself made up when it applied, so that it is known again when it has to ask twice. `cause`: how
    it ended.
    """

    member: Member
    age: int
    mark: str
    standing: Standing = Standing.IN
    cause: str = ""

    @property
    def id(self) -> WorkerId:
        """Rank and generation."""
        return self.member.id

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.member.info.name

    @property
    def is_in(self) -> bool:
        """Whether it is a member now."""
        return self.standing is Standing.IN

    @property
    def place(self) -> tuple[int, int, int, str]:
        """Where it is on the line of its rank."""
        return self.id.generation, self.standing, self.age, self.mark

    def ended(self, standing: Standing, cause: str) -> Life:
        """The same life after its end."""
        return dataclasses.replace(self, standing=standing, cause=cause)

    def plain(self) -> Plain:
        """As plain values."""
        info, member = self.member.info, self.member
        place = (info.name, info.id, info.generation, member.addresses, member.host)
        return (*place, self.age, self.mark, int(self.standing), self.cause)

    @classmethod
    def of(cls, plain: Plain) -> Life:
        """The reverse. Raises `RemoteProtocolError` where there can be no such life."""
        try:
            name, rank, generation, addresses, host, age, mark, standing, cause = plain
            member = Member(WorkerInfo(name, rank, generation), tuple(addresses), host)
            life = cls(member, age, mark, Standing(standing), cause)
        except (RuntimeError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"a peer tells of an impossible worker: {plain!r}") from error
        if rank < 0 or not 0 <= generation <= MAX_GENERATION:
            raise RemoteProtocolError(f"a peer tells of an impossible worker: {plain!r}")
        return life


class Change(NamedTuple):
    """A life began (`is_in`) or ended, as this table sees it for the first time."""

    life: Life


class Lives:
    """The table; see the module."""

    def __init__(self, lives: Iterable[Life] = ()) -> None:
        self._by_rank: dict[int, Life] = {}
        for life in lives:
            self.learn(life)

    def __repr__(self) -> str:
        return f"<Lives · {', '.join(f'{each.name} {each.id}' for each in self.living())}>"

    def learn(self, life: Life) -> list[Change]:
        """Takes the later of what was known of that rank and `life`; returns what began and ended.
        What had ended before it was heard of is no change."""
        known = self._by_rank.get(life.id.rank)
        if known is not None and life.place <= known.place:
            return []
        self._by_rank[life.id.rank] = life
        changes = []
        is_same = known is not None and known.id == life.id and known.mark == life.mark
        if known is not None and known.is_in:
            if is_same:
                changes += [] if life.is_in else [Change(life)]
            else:
                over = f"generation {life.id.generation} has taken its place"
                changes.append(Change(known.ended(Standing.DIED, over)))
        if life.is_in and not is_same:
            changes.append(Change(life))
        return changes

    def is_news(self, life: Life) -> bool:
        """Whether `life` is later than what is known of its rank."""
        known = self._by_rank.get(life.id.rank)
        return known is None or life.place > known.place

    def all(self) -> list[Life]:
        """The latest life of each rank, by rank."""
        return [self._by_rank[rank] for rank in sorted(self._by_rank)]

    def living(self) -> list[Life]:
        """Those that are in, the eldest first."""
        members = [life for life in self._by_rank.values() if life.is_in]
        return sorted(members, key=lambda life: (life.age, life.id))

    def eldest(self) -> Life | None:
        """The member that decides who comes in."""
        return min(
            (life for life in self._by_rank.values() if life.is_in),
            key=lambda life: (life.age, life.id),
            default=None,
        )

    def at(self, rank: int) -> Life | None:
        """The latest life of a rank, ended or not."""
        return self._by_rank.get(rank)

    def is_over(self, worker: WorkerId) -> bool:
        """Whether that life is known to have ended."""
        life = self._by_rank.get(worker.rank)
        if life is None or life.id.generation < worker.generation:
            return False
        return life.id != worker or not life.is_in

    def find(self, who: str | int | WorkerId) -> Life | None:
        """The member of that name, rank or id. Of two with one name, the younger."""
        if isinstance(who, str):
            namesakes = [each for each in self._by_rank.values() if each.is_in and each.name == who]
            return max(namesakes, key=lambda life: life.age, default=None)
        life = self._by_rank.get(who.rank if isinstance(who, WorkerId) else who)
        if life is None or not life.is_in or (isinstance(who, WorkerId) and life.id != who):
            return None
        return life

    def beyond(self, others: Iterable[Life]) -> tuple[Life, ...]:
        """What this table knows and one that holds `others` does not."""
        theirs = Lives(others)
        return tuple(life for life in self.all() if theirs.is_news(life))

    def digest(self) -> str:
        """Equal for tables that know the same."""
        places = [(life.id.rank, *life.place) for life in self.all()]
        return hashlib.blake2b(repr(places).encode(), digest_size=8).hexdigest()

    def free_rank(self, name: str) -> int:
        """A rank for a newcomer: that which its name had, else the lowest that nobody has."""
        former = [
            each.id.rank
            for each in self.all()
            if each.name == name and not each.is_in and each.id.generation < MAX_GENERATION
        ]
        if former:
            return former[-1]
        rank = 0
        while (life := self._by_rank.get(rank)) is not None:
            if not life.is_in and life.id.generation < MAX_GENERATION:
                break
            rank += 1
        return rank
