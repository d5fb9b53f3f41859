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

    from lockstitch.wire.messages.groups import MemberTuple


class MemberState(enum.IntEnum):
    """How a life stands; it only ever moves on."""

    IN = 0
    DIED = 1
    LEFT = 2


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One life of a rank, as all members know it.

    `age`: in which order lives were admitted, the eldest has the smallest. `mark`: what the worker
    itself made up when it applied, so that it is known again when it has to ask twice. `cause`: how
    it ended.
    """

    member: Member
    age: int
    mark: str
    state: MemberState = MemberState.IN
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
        return self.state is MemberState.IN

    @property
    def place(self) -> tuple[int, int, int, str]:
        """Where it is on the line of its rank."""
        return self.id.generation, self.state, self.age, self.mark

    def ended(self, state: MemberState, cause: str) -> MemberRecord:
        """The same life after its end."""
        return dataclasses.replace(self, state=state, cause=cause)

    def plain(self) -> MemberTuple:
        """As plain values."""
        info, member = self.member.info, self.member
        place = (info.name, info.id, info.generation, member.addresses, member.host)
        return (*place, self.age, self.mark, int(self.state), self.cause)

    @classmethod
    def of(cls, plain: MemberTuple) -> MemberRecord:
        """The reverse. Raises `RemoteProtocolError` where there can be no such life."""
        try:
            name, rank, generation, addresses, host, age, mark, state, cause = plain
            member = Member(WorkerInfo(name, rank, generation), tuple(addresses), host)
            record = cls(member, age, mark, MemberState(state), cause)
        except (RuntimeError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"a peer tells of an impossible worker: {plain!r}") from error
        if rank < 0 or not 0 <= generation <= MAX_GENERATION:
            raise RemoteProtocolError(f"a peer tells of an impossible worker: {plain!r}")
        return record


class Change(NamedTuple):
    """A life began (`is_in`) or ended, as this table sees it for the first time."""

    record: MemberRecord


class MemberRecords:
    """The table; see the module."""

    def __init__(self, records: Iterable[MemberRecord] = ()) -> None:
        self._by_rank: dict[int, MemberRecord] = {}
        for record in records:
            self.learn(record)

    def __repr__(self) -> str:
        return f"<Lives · {', '.join(f'{each.name} {each.id}' for each in self.living())}>"

    def learn(self, record: MemberRecord) -> list[Change]:
        """Takes the later of what was known of that rank and `record`; returns what began and ended.
        What had ended before it was heard of is no change."""
        known = self._by_rank.get(record.id.rank)
        if known is not None and record.place <= known.place:
            return []
        self._by_rank[record.id.rank] = record
        changes = []
        is_same = known is not None and known.id == record.id and known.mark == record.mark
        if known is not None and known.is_in:
            if is_same:
                changes += [] if record.is_in else [Change(record)]
            else:
                over = f"generation {record.id.generation} has taken its place"
                changes.append(Change(known.ended(MemberState.DIED, over)))
        if record.is_in and not is_same:
            changes.append(Change(record))
        return changes

    def is_news(self, record: MemberRecord) -> bool:
        """Whether `record` is later than what is known of its rank."""
        known = self._by_rank.get(record.id.rank)
        return known is None or record.place > known.place

    def all(self) -> list[MemberRecord]:
        """The latest life of each rank, by rank."""
        return [self._by_rank[rank] for rank in sorted(self._by_rank)]

    def living(self) -> list[MemberRecord]:
        """Those that are in, the eldest first."""
        members = [record for record in self._by_rank.values() if record.is_in]
        return sorted(members, key=lambda record: (record.age, record.id))

    def eldest(self) -> MemberRecord | None:
        """The member that decides who comes in."""
        return min(
            (record for record in self._by_rank.values() if record.is_in),
            key=lambda record: (record.age, record.id),
            default=None,
        )

    def at(self, rank: int) -> MemberRecord | None:
        """The latest life of a rank, ended or not."""
        return self._by_rank.get(rank)

    def is_over(self, worker: WorkerId) -> bool:
        """Whether that life is known to have ended."""
        record = self._by_rank.get(worker.rank)
        if record is None or record.id.generation < worker.generation:
            return False
        return record.id != worker or not record.is_in

    def find(self, who: str | int | WorkerId) -> MemberRecord | None:
        """The member of that name, rank or id. Of two with one name, the younger."""
        if isinstance(who, str):
            namesakes = [each for each in self._by_rank.values() if each.is_in and each.name == who]
            return max(namesakes, key=lambda record: record.age, default=None)
        record = self._by_rank.get(who.rank if isinstance(who, WorkerId) else who)
        if record is None or not record.is_in or (isinstance(who, WorkerId) and record.id != who):
            return None
        return record

    def beyond(self, others: Iterable[MemberRecord]) -> tuple[MemberRecord, ...]:
        """What this table knows and one that holds `others` does not."""
        theirs = MemberRecords(others)
        return tuple(record for record in self.all() if theirs.is_news(record))

    def digest(self) -> str:
        """Equal for tables that know the same."""
        places = [(record.id.rank, *record.place) for record in self.all()]
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
        while (record := self._by_rank.get(rank)) is not None:
            if not record.is_in and record.id.generation < MAX_GENERATION:
                break
            rank += 1
        return rank
