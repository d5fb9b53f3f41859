"""How the members of a group keep the same roster without a store: one member's part of it, as a
table of events and instructions (`membership_events`) without any I/O.

    the eldest   decides who comes in, and passes news on to all
    the others   tell the eldest what they see; ask it when they have come in
    each         compares its table with that of the next younger member, again and again

A newcomer's *admission*: it applies to any member, which names the eldest. The eldest gives it rank
and generation, tells all members, and answers only when each of them has acknowledged that or is
gone. So whoever is in is known to everybody who is, and an answer lost with the eldest leaves a
newcomer that nobody has promised anything: it asks again, and is recognized by its *mark*.

When the eldest dies or leaves, the next takes over. It may have missed what the former one had told
some members only, so it first asks all of them for what they know, and admits nobody meanwhile.
Late notices of those that are gone are ignored, since one might come after that. Hence no two lives
get the same rank and generation, and no two members the same name.

Why all end with the same roster, whatever was lost, and whoever died while passing it on:
a record is a point in a semilattice (`member_records`), so a notice does no harm late, twice, or by
another way. Each member asks the next in the ring of those that it thinks are in, which tells it
what differs, both ways. When nothing changes any more, each knows what the next one knows. Follow
the ring: all whom one member thinks in know the same, so each ring is closed. Two rings cannot be:
a newcomer comes in only when all members know it. And nobody in a ring is dead, for whoever asks it
finds out.

Assumed: a worker that cannot be reached is dead. One that is alive all the same, cut off, learns
from whom it reaches later that it is out (`Excluded`); it does not come back under that generation.
One that is left alone asks the dead now and then whether it is (`cut_off_from`). Where several are
left on both sides, the eldest of each asks too, and says so; which side is the group, people have
to decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lockstitch.ids import MAX_GENERATION, WorkerInfo
from lockstitch.rendezvous.member_records import MemberRecord, MemberRecords, MemberState
from lockstitch.rendezvous.membership_events import (
    Acknowledgement,
    Admit,
    Applied,
    Changed,
    Confirmed,
    DeclaredDead,
    Departed,
    Excluded,
    Leaving,
    Lost,
    Notice,
    Query,
    Redirect,
    Refuse,
    Ticked,
    Withdrew,
)
from lockstitch.rendezvous.roster import Member, name_is_taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockstitch.ids import WorkerId
    from lockstitch.rendezvous.membership_events import Event, Instruction

_MOST_ASKED: Final = 8


@dataclass
class _Application:
    """An application that is not decided: it waits until the eldest knows all, or until the member
    that has the wanted name or rank, and may be dead (`asked`), has given a sign of life."""

    wish: Applied
    asked: WorkerId | None = None


@dataclass
class _Admission:
    """A newcomer that is in as soon as all members that were `told` have acknowledged it."""

    ticket: int
    record: MemberRecord
    told: set[tuple[WorkerId, int]] = field(default_factory=set)


class MembershipProtocol:
    """The protocol of one member, `me`, that came in when the group was as in `records`."""

    def __init__(self, me: MemberRecord, records: Iterable[MemberRecord]) -> None:
        self.me = me
        self.records = MemberRecords([*records, me])
        self._last_number = 0
        self._unacknowledged: dict[WorkerId, dict[int, Notice]] = {}
        self._applications: dict[int, _Application] = {}
        self._admissions: dict[int, _Admission] = {}
        self._leaving_notices: set[tuple[WorkerId, int]] = set()
        """Receivers and numbers of the notices that this member leaves, until they are
        acknowledged. Whoever has acknowledged one listens to nothing else from here."""
        self._unknown_tables: set[WorkerId] = set()
        """Members whose table the eldest has not seen since it is the eldest."""
        self._unconfirmed: int | None = None
        """Whoever acknowledges a notice with this number or a later one can be reached after the
        last death that was seen here."""
        self._is_unpublished = False
        self.is_leaving = self._is_out = self._has_departed = False
        # Whoever founds a group, alone, knows all there is; whoever takes over later does not.
        self._leads = self._is_eldest()
        self._out: list[Instruction] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            Notice: self._take_notice,
            Acknowledgement: self._take_acknowledgement,
            Query: self._answer_query,
            Lost: self._lose,
            DeclaredDead: self._take_declaration,
            Applied: self._take_application,
            Withdrew: self._withdraw,
            Leaving: self._leave,
            Ticked: self._tick,
        }

    def __repr__(self) -> str:
        return (
            f"<MembershipProtocol of {self.me.name!r} · {self.records!r}{' · leads' * self._leads}>"
        )

    @property
    def is_settled(self) -> bool:
        """Whether nothing is unanswered, so that the next tick may take its time."""
        open_ = (self._unacknowledged, self._unknown_tables, self._applications, self._admissions)
        return not any(open_)

    def begin(self) -> list[Instruction]:
        """Asks the eldest what has happened since; to be called once this member serves."""
        eldest = self.records.eldest()
        return [] if eldest is None or eldest.id == self.me.id else [Query(eldest.id, "")]

    def handle(self, event: Event) -> list[Instruction]:
        """Takes an event in; returns the instructions that follow from it, in order."""
        self._handlers[type(event)](event)
        self._settle()
        out, self._out = self._out, []
        return out

    # ------------------------------------------------------------ notices

    def _take_notice(self, event: Notice) -> None:
        record = self.records.at(event.peer.rank)
        if record is None or record.id != event.peer or record.state is not MemberState.DIED:
            self._out.append(Acknowledgement(event.peer, event.number))
        if self.records.is_over(event.peer):
            return  # it is late: a successor of its sender may have decided otherwise
        self._learn(event.records, event.peer)
        if not event.is_whole:
            return
        # Only from one that knows that those before us are gone, and will not listen to them now.
        theirs = MemberRecords(event.records).eldest()
        if theirs is not None and theirs.id == self.me.id:
            self._unknown_tables.discard(event.peer)
        missing = self.records.beyond(event.records)
        if missing:
            self._notify(event.peer, missing)
        for application in list(self._applications.values()):
            if application.asked == event.peer:  # so it lives, and has what is wanted
                self._decide(application, is_alive=True)

    def _answer_query(self, event: Query) -> None:
        if event.digest != self.records.digest():
            for number, notice in list(self._unacknowledged.get(event.peer, {}).items()):
                if notice.is_whole:  # the new one says it all, and more
                    del self._unacknowledged[event.peer][number]
            self._notify(event.peer, tuple(self.records.all()), is_whole=True)

    def _take_acknowledgement(self, event: Acknowledgement) -> None:
        told = self._unacknowledged.get(event.peer, {}).pop(event.number, None)
        if told is not None and any(x.id == self.me.id and not x.is_in for x in told.records):
            # It has parted from this one with that, however it was told, and acknowledges no other.
            self._unacknowledged.pop(event.peer, None)
        for admission in self._admissions.values():
            admission.told.discard((event.peer, event.number))
        first = self._unconfirmed
        if first is not None and event.number >= first and self.records.find(event.peer):
            self._unconfirmed = None

    def _lose(self, event: Lost) -> None:
        record = self.records.find(event.worker)
        if record is not None and record.id != self.me.id:
            state = MemberState.LEFT if event.has_left else MemberState.DIED
            self._learn([record.ended(state, event.cause)], None)

    def _take_declaration(self, event: DeclaredDead) -> None:
        if not (self.is_leaving or self._is_out):
            self._learn([self.me.ended(MemberState.DIED, event.cause)], None)

    def cut_off_from(self) -> list[MemberRecord]:
        """Returns the last to have died: if they are alive, they may hold this member for dead,
        and all who are left with it. It is for the eldest, who may be alone, to ask them."""
        if self._is_out or self.is_leaving or not self._is_eldest():
            return []
        dead = [record for record in self.records.all() if record.state is MemberState.DIED]
        return sorted(dead, key=lambda record: record.age)[-_MOST_ASKED:]

    def _learn(
        self, records: Iterable[MemberRecord], source: WorkerId | None
    ) -> list[tuple[WorkerId, int]]:
        """Takes records in and passes on those that are news; returns receivers and numbers of the
        notices."""
        news = []
        for record in records:
            if self.records.is_news(record):
                news.append(record)
                self._out += map(Changed, self.records.learn(record))
        mine = self.records.find(self.me.id)
        if mine is None and not (self.is_leaving or self._is_out):
            self._is_out = True
            now = self.records.at(self.me.id.rank)
            self._out.append(Excluded(now.cause if now is not None else ""))
        if not news:
            return []
        self._is_unpublished = True
        if source is None:
            self._unconfirmed = self._last_number + 1
        eldest = self.records.eldest()
        if eldest is None or self._is_out:
            return []
        if eldest.id != self.me.id:
            return [] if eldest.id == source else [self._notify(eldest.id, tuple(news))]
        new = {record.id for record in news}
        return [
            self._notify(record.id, tuple(news))
            for record in self.records.living()
            if record.id not in (self.me.id, source) and record.id not in new
        ]

    def _notify(
        self, to: WorkerId, records: tuple[MemberRecord, ...], *, is_whole: bool = False
    ) -> tuple[WorkerId, int]:
        self._last_number += 1
        notice = Notice(to, self._last_number, records, is_whole)
        self._unacknowledged.setdefault(to, {})[notice.number] = notice
        self._out.append(notice)
        return to, notice.number

    # ------------------------------------------------------------ who comes in

    def _take_application(self, event: Applied) -> None:
        self._applications[event.ticket] = _Application(event)

    def _withdraw(self, event: Withdrew) -> None:
        self._applications.pop(event.ticket, None)
        self._admissions.pop(event.ticket, None)

    def _decide(self, application: _Application, *, is_alive: bool = False) -> None:
        wish = application.wish
        if self._is_out or not self._is_eldest():
            self._refer(wish.ticket)
        elif self._leads and not self._unknown_tables:
            known = [each for each in self.records.living() if each.mark == wish.mark]
            holder, complaint = self._conflict(wish)
            if known:
                self._admit(wish, known[0])
            elif holder is None:
                self._admit(wish, self._new_record(wish))
            elif holder.id == self.me.id or (is_alive and application.asked == holder.id):
                self._answer(Refuse(wish.ticket, complaint))
            elif application.asked != holder.id:  # it may have died a moment ago
                application.asked = holder.id
                self._out.append(Query(holder.id, ""))

    def _conflict(self, wish: Applied) -> tuple[MemberRecord | None, str]:
        """Returns the member that has the wanted rank or name, and what to say of that."""
        if wish.rank >= 0 and (holder := self.records.find(wish.rank)) is not None:
            return holder, f"rank {wish.rank} is taken by worker {holder.name}"
        holder = self.records.find(wish.name)
        if holder is None:
            return None, ""
        rank = wish.rank if wish.rank >= 0 else self.records.free_rank("")
        return holder, name_is_taken(wish.name, holder.id.rank, rank)

    def _new_record(self, wish: Applied) -> MemberRecord | None:
        rank = wish.rank if wish.rank >= 0 else self.records.free_rank(wish.name)
        former = self.records.at(rank)
        generation = self.me.id.generation if former is None else former.id.generation + 1
        if generation > MAX_GENERATION:
            self._answer(Refuse(wish.ticket, f"rank {rank} has had {generation} lives: no more"))
            return None
        member = Member(WorkerInfo(wish.name, rank, generation), wish.addresses, wish.host)
        age = 1 + max(record.age for record in self.records.all())
        return MemberRecord(member, age, wish.mark)

    def _admit(self, wish: Applied, record: MemberRecord | None) -> None:
        if record is None:
            return
        del self._applications[wish.ticket]
        told = self._learn([record], None)
        if not told:
            # It is known from an earlier attempt, but perhaps not to all. Younger ones learned of
            # it when they came in; and if two such waited for each other, neither would come in.
            elders = [each.id for each in self.records.living() if each.age < record.age]
            told = [self._notify(to, (record,)) for to in elders if to != self.me.id]
        self._admissions[wish.ticket] = _Admission(wish.ticket, record, set(told))

    def _refer(self, ticket: int) -> None:
        """Answers that another member decides."""
        eldest = self.records.eldest()
        if eldest is None or self._is_out:
            self._answer(Refuse(ticket, f"worker {self.me.name!r} has left the group"))
        else:
            self._answer(Redirect(ticket, eldest))
            self._out.append(Query(eldest.id, ""))  # which may be why the newcomer came here

    def _answer(self, answer: Redirect | Refuse) -> None:
        self._applications.pop(answer.ticket, None)
        self._out.append(answer)

    # ------------------------------------------------------------ the end, and time

    def _leave(self, _event: Leaving) -> None:
        if not self.is_leaving:
            self.is_leaving, self._leads = True, False
            self._unknown_tables.clear()
            left = self.me.ended(MemberState.LEFT, "it has left the group")
            self._leaving_notices = set(self._learn([left], None))
            # Nobody listens to one that has left: whoever is half in begins anew with the next.
            for admission in self._admissions.values():
                self._refer(admission.ticket)
            self._admissions.clear()

    def _tick(self, _event: Ticked) -> None:
        for notices in self._unacknowledged.values():
            self._out += notices.values()
        waited = {each.asked for each in self._applications.values() if each.asked is not None}
        self._out += [Query(to, "") for to in sorted(self._unknown_tables | waited)]
        following = self._next()
        if following is not None:
            self._out.append(Query(following, self.records.digest()))

    def _next(self) -> WorkerId | None:
        """Returns the next younger member; after the youngest comes the eldest."""
        ring = [record.id for record in self.records.living()]
        if self.me.id not in ring or len(ring) == 1:
            return None
        return ring[(ring.index(self.me.id) + 1) % len(ring)]

    def _is_eldest(self) -> bool:
        eldest = self.records.eldest()
        return eldest is not None and eldest.id == self.me.id

    def _settle(self) -> None:
        """Draws the conclusions from what has changed."""
        self._take_over()
        living = {record.id for record in self.records.living()}
        # Whoever still asks to come in has not: nothing can be heard from it.
        applying = {each.wish.mark for each in self._applications.values()}
        outside = {record.id for record in self.records.living() if record.mark in applying}
        self._unknown_tables &= living - outside
        for to in [
            to for to, notices in self._unacknowledged.items() if to not in living or not notices
        ]:
            del self._unacknowledged[to]
        for application in list(self._applications.values()):
            if application.wish.ticket in self._applications:
                self._decide(application)
        self._end_admissions(living)
        self._leaving_notices = {
            (to, number)
            for to, number in self._leaving_notices
            if number in self._unacknowledged.get(to, {})
        }
        if self.is_leaving and not self._has_departed and not self._leaving_notices:
            self._has_departed = True
            self._out.append(Departed())
        self._publish()

    def _take_over(self) -> None:
        """Leads from now on, and asks all what they know, once all who came earlier are gone."""
        if not (self._leads or self.is_leaving) and self._is_eldest():
            self._leads = True
            self._unknown_tables = {each.id for each in self.records.living()} - {self.me.id}
            self._out += [Query(to, "") for to in sorted(self._unknown_tables)]

    def _end_admissions(self, living: set[WorkerId]) -> None:
        """Lets in those of whom all members have been told."""
        for admission in list(self._admissions.values()):
            admission.told = {each for each in admission.told if each[0] in living}
            if not admission.told:
                del self._admissions[admission.ticket]
                records = tuple(self.records.all())
                self._out.append(Admit(admission.ticket, admission.record, records))
                self._is_unpublished = True

    def _publish(self) -> None:
        """Lets the store be told, by the eldest, once it is sure that it is not itself cut off."""
        is_sure = self._unconfirmed is None and not (self.is_leaving or self._is_out)
        if self._is_unpublished and is_sure and self._is_eldest():
            self._is_unpublished = False
            outside = {admission.record.id for admission in self._admissions.values()}
            records = (record for record in self.records.all() if record.id not in outside)
            self._out.append(Confirmed(tuple(records)))
