"""Who is and was in a group that workers join and leave: one record for each rank, of its latest
life. No I/O here.

Two members may have been told different things, in a different order. The records of one rank are
ordered by their *version*: a later life of the rank comes after an earlier one, and within a life
*in*, *died*, *left*. Two members learn from each other by keeping the later record, rank by rank.
It does not matter in which order, how often or by which way that is done: those who were told the
same know the same (the tables are a join-semilattice, as in Shapiro et al., "Conflict-free
Replicated Data Types", 2011).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstitch.errors import RemoteProtocolError
from lockstitch.ids import MAX_GENERATION, WorkerId, WorkerInfo
from lockstitch.rendezvous.roster import Member

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.wire.messages.groups import MemberTuple


class MemberState(enum.IntEnum):
    """Whether a member is in, or how its life in the group has ended; it never goes back."""

    IN = 0
    DIED = 1
    LEFT = 2


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One life of a rank, as all members know it.

    `age` numbers the lives in the order in which they were admitted: the eldest has the smallest.
    `mark` is what the worker made up when it applied, so that it is recognized when it has to ask
    twice. `cause` says how the life ended.
    """

    member: Member
    age: int
    mark: str
    state: MemberState = MemberState.IN
    cause: str = ""

    @property
    def id(self) -> WorkerId:
        """The member's rank and generation."""
        return self.member.id

    @property
    def name(self) -> str:
        """The member's name."""
        return self.member.info.name

    @property
    def is_in(self) -> bool:
        """Whether the worker is a member now."""
        return self.state is MemberState.IN

    @property
    def version(self) -> tuple[int, int, int, str]:
        """What orders the records of one rank: the later is the greater."""
        return self.id.generation, self.state, self.age, self.mark

    def ended(self, state: MemberState, cause: str) -> MemberRecord:
        """Returns the record of the same life after its end."""
        return dataclasses.replace(self, state=state, cause=cause)

    def plain(self) -> MemberTuple:
        """Returns the record as plain values, for messages."""
        info, member = self.member.info, self.member
        who = (info.name, info.id, info.generation, member.addresses, member.host)
        return (*who, self.age, self.mark, int(self.state), self.cause)

    @classmethod
    def of(cls, plain: MemberTuple) -> MemberRecord:
        """Makes a record of such values. Raises `RemoteProtocolError` for an impossible worker."""
        try:
            name, rank, generation, addresses, host, age, mark, state, cause = plain
            member = Member(WorkerInfo(name, rank, generation), tuple(addresses), host)
            record = cls(member, age, mark, MemberState(state), cause)
        except (RuntimeError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"a peer tells of an impossible worker: {plain!r}") from error
        if rank < 0 or not 0 <= generation <= MAX_GENERATION:
            raise RemoteProtocolError(f"a peer tells of an impossible worker: {plain!r}")
        return record


class MemberRecords:
    """A table with the latest record of each rank, as one member knows them."""

    def __init__(self, records: Iterable[MemberRecord] = ()) -> None:
        self._by_rank: dict[int, MemberRecord] = {}
        for record in records:
            self.learn(record)

    def __repr__(self) -> str:
        return f"<MemberRecords · {', '.join(f'{each.name} {each.id}' for each in self.living())}>"

    def learn(self, record: MemberRecord) -> list[MemberRecord]:
        """Keeps the later of `record` and what was known of its rank. Returns the lives that have
        ended or begun (`is_in`) by that; one that had ended before it was known here is none."""
        known = self._by_rank.get(record.id.rank)
        if known is not None and record.version <= known.version:
            return []
        self._by_rank[record.id.rank] = record
        changes = []
        is_same = known is not None and known.id == record.id and known.mark == record.mark
        if known is not None and known.is_in:
            if is_same:
                changes += [] if record.is_in else [record]
            else:
                over = f"generation {record.id.generation} has taken its place"
                changes.append(known.ended(MemberState.DIED, over))
        if record.is_in and not is_same:
            changes.append(record)
        return changes

    def is_news(self, record: MemberRecord) -> bool:
        """Whether `record` is later than what is known of its rank."""
        known = self._by_rank.get(record.id.rank)
        return known is None or record.version > known.version

    def all(self) -> list[MemberRecord]:
        """Returns the latest record of each rank, by rank."""
        return [self._by_rank[rank] for rank in sorted(self._by_rank)]

    def living(self) -> list[MemberRecord]:
        """Returns the records of those that are in, the eldest first."""
        members = [record for record in self._by_rank.values() if record.is_in]
        return sorted(members, key=lambda record: (record.age, record.id))

    def eldest(self) -> MemberRecord | None:
        """Returns the member that decides who comes in; None in an empty group."""
        return min(
            (record for record in self._by_rank.values() if record.is_in),
            key=lambda record: (record.age, record.id),
            default=None,
        )

    def at(self, rank: int) -> MemberRecord | None:
        """Returns the latest record of a rank, whether its life has ended or not."""
        return self._by_rank.get(rank)

    def is_over(self, worker: WorkerId) -> bool:
        """Whether that life of a rank is known to have ended."""
        record = self._by_rank.get(worker.rank)
        if record is None or record.id.generation < worker.generation:
            return False
        return record.id != worker or not record.is_in

    def find(self, who: str | int | WorkerId) -> MemberRecord | None:
        """Returns the member of that name, rank or id; of two with one name, the younger."""
        if isinstance(who, str):
            namesakes = [each for each in self._by_rank.values() if each.is_in and each.name == who]
            return max(namesakes, key=lambda record: record.age, default=None)
        record = self._by_rank.get(who.rank if isinstance(who, WorkerId) else who)
        if record is None or not record.is_in or (isinstance(who, WorkerId) and record.id != who):
            return None
        return record

    def beyond(self, others: Iterable[MemberRecord]) -> tuple[MemberRecord, ...]:
        """Returns what this table knows and one that holds `others` does not."""
        theirs = MemberRecords(others)
        return tuple(record for record in self.all() if theirs.is_news(record))

    def digest(self) -> str:
        """Returns a text that is equal for tables that know the same."""
        versions = [(record.id.rank, *record.version) for record in self.all()]
        return hashlib.blake2b(repr(versions).encode(), digest_size=8).hexdigest()

    def free_rank(self, name: str) -> int:
        """Returns a rank for a newcomer: the one that its name had, or the lowest that is free."""
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
