"""How the members of a group keep the same roster without a store: one member's part of it, as a
table of events and instructions without any I/O.

    the eldest   decides who comes in, and passes news on to all
    the others   tell the eldest what they see; ask it when they have come in
    each         compares its table with that of its next younger member, again and again

A newcomer's *admission*: it applies to any member, which names the eldest. The eldest gives it rank
and generation, tells all members, and answers only when each of them has noted it or is gone. So
whoever is in is known to everybody who is, and an answer lost with the eldest leaves a newcomer
that nobody has promised anything: it asks again, and is known by its *mark*.

When the eldest dies or leaves, the next takes over. It may have missed what the former one had told
some members only, so it first asks all of them for what they know, and admits nobody meanwhile.
Late words of those that are gone are ignored, lest one comes after that. Hence no two lives get the
same rank and generation, and no two members the same name.

Why all end with the same roster, whatever was lost, and whoever died while passing it on:
news is a point in a semilattice (`lives`), so it does no harm late, twice, or by another way. Each
member asks the next in the ring of those that it thinks are in, which tells it what differs, both
ways. When nothing changes any more, each knows what the next one knows. Follow the ring: all whom
one member thinks in know the same, so each ring is closed. Two rings cannot be: a newcomer comes in
only when all members know it. And nobody in a ring is dead, for who asks it finds out.

Assumed: a worker that cannot be reached is dead. One that lives all the same, cut off, learns from
whom it reaches later that it is out (`Excluded`); it does not come back under that generation. One
that is left alone asks the dead now and then whether it is (`cut_off_from`). Where several are left
on both sides, the eldest of each asks too, and says so; which side is the group is not decided.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lockstitch.ids import MAX_GENERATION, WorkerInfo
from lockstitch.rendezvous.circle_events import (
    Admit,
    Applied,
    Ask,
    Asked,
    Changed,
    Confirmed,
    Departed,
    Excluded,
    Heard,
    Leaving,
    Lost,
    Note,
    Noted,
    Redirect,
    Refuse,
    Struck,
    Tell,
    Ticked,
    Withdrew,
)
from lockstitch.rendezvous.lives import Life, Lives, Standing
from lockstitch.rendezvous.roster import Member, name_is_taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lockstitch.ids import WorkerId
    from lockstitch.rendezvous.circle_events import Event, Instruction

_MOST_ASKED: Final = 8


@dataclass
class _Application:
    """One that has not been decided on: it waits for the eldest to know all, or for the holder of
    what it wants, which may be dead (`asked`), to give a sign of life."""

    wish: Applied
    asked: WorkerId | None = None


@dataclass
class _Admission:
    """One that is in as soon as all members that were `told` have noted it."""

    ticket: int
    life: Life
    told: set[tuple[WorkerId, int]] = field(default_factory=set)


class Circle:
    """One member, `me`, that came in when `lives` was the roster."""

    def __init__(self, me: Life, lives: Iterable[Life]) -> None:
        self.me = me
        self.lives = Lives([*lives, me])
        self._last_number = 0
        self._unnoted: dict[WorkerId, dict[int, Tell]] = {}
        self._applications: dict[int, _Application] = {}
        self._admissions: dict[int, _Admission] = {}
        self._farewell: set[tuple[WorkerId, int]] = set()
        """What tells that this member leaves, as long as it is not noted. Who has noted it listens
        to nothing else from here."""
        self._unheard: set[WorkerId] = set()
        """Members whose table the eldest has not seen since it is the eldest."""
        self._unconfirmed: int | None = None
        """Whoever notes what is told under this number or a later one can be reached after the
        last death that was seen here."""
        self._is_unpublished = False
        self.is_leaving = self._is_out = self._has_departed = False
        # Whoever founds a group, alone, knows all there is; whoever takes over later does not.
        self._leads = self._is_eldest()
        self._out: list[Instruction] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            Heard: self._heard,
            Noted: self._noted,
            Asked: self._asked,
            Lost: self._lost,
            Struck: self._struck,
            Applied: self._applied,
            Withdrew: self._withdrew,
            Leaving: self._leave,
            Ticked: self._ticked,
        }

    def __repr__(self) -> str:
        return f"<Circle of {self.me.name!r} · {self.lives!r}{' · leads' * self._leads}>"

    @property
    def is_settled(self) -> bool:
        """Whether nothing is unanswered, so that the next tick may take its time."""
        return not (self._unnoted or self._unheard or self._applications or self._admissions)

    def begin(self) -> list[Instruction]:
        """To be called once this member serves: it asks the eldest what has happened since."""
        eldest = self.lives.eldest()
        return [] if eldest is None or eldest.id == self.me.id else [Ask(eldest.id, "")]

    def handle(self, event: Event) -> list[Instruction]:
        """Takes an event in; returns what must be done, in order."""
        self._handlers[type(event)](event)
        self._settle()
        out, self._out = self._out, []
        return out

    # ------------------------------------------------------------ news

    def _heard(self, event: Heard) -> None:
        life = self.lives.at(event.sender.rank)
        if life is None or life.id != event.sender or life.standing is not Standing.DIED:
            self._out.append(Note(event.sender, event.number))
        if self.lives.is_over(event.sender):
            return  # a late word of one that is gone: its successor may have decided otherwise
        self._learn(event.lives, event.sender)
        if not event.is_whole:
            return
        # Only from one that knows that those before us are gone, and will not listen to them now.
        theirs = Lives(event.lives).eldest()
        if theirs is not None and theirs.id == self.me.id:
            self._unheard.discard(event.sender)
        missing = self.lives.beyond(event.lives)
        if missing:
            self._tell(event.sender, missing)
        for application in list(self._applications.values()):
            if application.asked == event.sender:  # so it lives, and has what is wanted
                self._decide(application, lives_still=True)

    def _asked(self, event: Asked) -> None:
        if event.digest != self.lives.digest():
            for number, tell in list(self._unnoted.get(event.sender, {}).items()):
                if tell.is_whole:  # this one says it all, and more
                    del self._unnoted[event.sender][number]
            self._tell(event.sender, tuple(self.lives.all()), is_whole=True)

    def _noted(self, event: Noted) -> None:
        told = self._unnoted.get(event.sender, {}).pop(event.number, None)
        if told is not None and any(x.id == self.me.id and not x.is_in for x in told.lives):
            # It has parted from this one with that note, however it was told, and sends no other.
            self._unnoted.pop(event.sender, None)
        for admission in self._admissions.values():
            admission.told.discard((event.sender, event.number))
        first = self._unconfirmed
        if first is not None and event.number >= first and self.lives.find(event.sender):
            self._unconfirmed = None

    def _lost(self, event: Lost) -> None:
        life = self.lives.find(event.worker)
        if life is not None and life.id != self.me.id:
            standing = Standing.LEFT if event.has_left else Standing.DIED
            self._learn([life.ended(standing, event.cause)], None)

    def _struck(self, event: Struck) -> None:
        if not (self.is_leaving or self._is_out):
            self._learn([self.me.ended(Standing.DIED, event.cause)], None)

    def cut_off_from(self) -> list[Life]:
        """Those who, were they alive, might hold this member for dead, and all who are left with
        it: the last to have died. For the eldest to ask, who may be alone."""
        if self._is_out or self.is_leaving or not self._is_eldest():
            return []
        dead = [life for life in self.lives.all() if life.standing is Standing.DIED]
        return sorted(dead, key=lambda life: life.age)[-_MOST_ASKED:]

    def _learn(self, lives: Iterable[Life], source: WorkerId | None) -> list[tuple[WorkerId, int]]:
        """Takes lives in and passes on what was new; returns what was told, to whom."""
        news = []
        for life in lives:
            if self.lives.is_news(life):
                news.append(life)
                self._out += [Changed(change.life) for change in self.lives.learn(life)]
        mine = self.lives.find(self.me.id)
        if mine is None and not (self.is_leaving or self._is_out):
            self._is_out = True
            now = self.lives.at(self.me.id.rank)
            self._out.append(Excluded(now.cause if now is not None else ""))
        if not news:
            return []
        self._is_unpublished = True
        if source is None:
            self._unconfirmed = self._last_number + 1
        eldest = self.lives.eldest()
        if eldest is None or self._is_out:
            return []
        if eldest.id != self.me.id:
            return [] if eldest.id == source else [self._tell(eldest.id, tuple(news))]
        new = {life.id for life in news}
        return [
            self._tell(life.id, tuple(news))
            for life in self.lives.living()
            if life.id not in (self.me.id, source) and life.id not in new
        ]

    def _tell(
        self, to: WorkerId, lives: tuple[Life, ...], *, is_whole: bool = False
    ) -> tuple[WorkerId, int]:
        self._last_number += 1
        tell = Tell(to, self._last_number, lives, is_whole)
        self._unnoted.setdefault(to, {})[tell.number] = tell
        self._out.append(tell)
        return to, tell.number

    # ------------------------------------------------------------ who comes in

    def _applied(self, event: Applied) -> None:
        self._applications[event.ticket] = _Application(event)

    def _withdrew(self, event: Withdrew) -> None:
        self._applications.pop(event.ticket, None)
        self._admissions.pop(event.ticket, None)

    def _decide(self, application: _Application, *, lives_still: bool = False) -> None:
        wish = application.wish
        if self._is_out or not self._is_eldest():
            self._refer(wish.ticket)
        elif self._leads and not self._unheard:
            known = [each for each in self.lives.living() if each.mark == wish.mark]
            holder, complaint = self._conflict(wish)
            if known:
                self._admit(wish, known[0])
            elif holder is None:
                self._admit(wish, self._new_life(wish))
            elif holder.id == self.me.id or (lives_still and application.asked == holder.id):
                self._answer(Refuse(wish.ticket, complaint))
            elif application.asked != holder.id:  # it may have died a moment ago
                application.asked = holder.id
                self._out.append(Ask(holder.id, ""))

    def _conflict(self, wish: Applied) -> tuple[Life | None, str]:
        """Who has what is wished for, and what to say of it."""
        if wish.rank >= 0 and (holder := self.lives.find(wish.rank)) is not None:
            return holder, f"rank {wish.rank} is taken by worker {holder.name}"
        holder = self.lives.find(wish.name)
        if holder is None:
            return None, ""
        rank = wish.rank if wish.rank >= 0 else self.lives.free_rank("")
        return holder, name_is_taken(wish.name, holder.id.rank, rank)

    def _new_life(self, wish: Applied) -> Life | None:
        rank = wish.rank if wish.rank >= 0 else self.lives.free_rank(wish.name)
        former = self.lives.at(rank)
        generation = self.me.id.generation if former is None else former.id.generation + 1
        if generation > MAX_GENERATION:
            self._answer(Refuse(wish.ticket, f"rank {rank} has had {generation} lives: no more"))
            return None
        member = Member(WorkerInfo(wish.name, rank, generation), wish.addresses, wish.host)
        age = 1 + max(life.age for life in self.lives.all())
        return Life(member, age, wish.mark)

    def _admit(self, wish: Applied, life: Life | None) -> None:
        if life is None:
            return
        del self._applications[wish.ticket]
        told = self._learn([life], None)
        if not told:
            # It is known from an earlier attempt, but perhaps not to all. Younger ones learned of
            # it when they came in; and if two such waited for each other, neither would come in.
            elders = [each.id for each in self.lives.living() if each.age < life.age]
            told = [self._tell(to, (life,)) for to in elders if to != self.me.id]
        self._admissions[wish.ticket] = _Admission(wish.ticket, life, set(told))

    def _refer(self, ticket: int) -> None:
        """It is for another member to decide."""
        eldest = self.lives.eldest()
        if eldest is None or self._is_out:
            self._answer(Refuse(ticket, f"worker {self.me.name!r} has left the group"))
        else:
            self._answer(Redirect(ticket, eldest))
            self._out.append(Ask(eldest.id, ""))  # which may be why the newcomer came here

    def _answer(self, answer: Redirect | Refuse) -> None:
        self._applications.pop(answer.ticket, None)
        self._out.append(answer)

    # ------------------------------------------------------------ the end, and time

    def _leave(self, _event: Leaving) -> None:
        if not self.is_leaving:
            self.is_leaving, self._leads = True, False
            self._unheard.clear()
            left = self.me.ended(Standing.LEFT, "it has left the group")
            self._farewell = set(self._learn([left], None))
            # Nobody listens to one that has left: whoever is half in begins anew with the next.
            for admission in self._admissions.values():
                self._refer(admission.ticket)
            self._admissions.clear()

    def _ticked(self, _event: Ticked) -> None:
        for tells in self._unnoted.values():
            self._out += tells.values()
        waited = {each.asked for each in self._applications.values() if each.asked is not None}
        self._out += [Ask(to, "") for to in sorted(self._unheard | waited)]
        following = self._next()
        if following is not None:
            self._out.append(Ask(following, self.lives.digest()))

    def _next(self) -> WorkerId | None:
        """The next younger member; after the youngest comes the eldest."""
        ring = [life.id for life in self.lives.living()]
        if self.me.id not in ring or len(ring) == 1:
            return None
        return ring[(ring.index(self.me.id) + 1) % len(ring)]

    def _is_eldest(self) -> bool:
        eldest = self.lives.eldest()
        return eldest is not None and eldest.id == self.me.id

    def _settle(self) -> None:
        """Draws the conclusions from what has changed."""
        self._take_over()
        living = {life.id for life in self.lives.living()}
        # Whoever still asks to come in has not: nothing can be heard from it.
        applying = {each.wish.mark for each in self._applications.values()}
        outside = {life.id for life in self.lives.living() if life.mark in applying}
        self._unheard &= living - outside
        for to in [to for to, tells in self._unnoted.items() if to not in living or not tells]:
            del self._unnoted[to]
        for application in list(self._applications.values()):
            if application.wish.ticket in self._applications:
                self._decide(application)
        self._end_admissions(living)
        self._farewell = {
            (to, number) for to, number in self._farewell if number in self._unnoted.get(to, {})
        }
        if self.is_leaving and not self._has_departed and not self._farewell:
            self._has_departed = True
            self._out.append(Departed())
        self._publish()

    def _take_over(self) -> None:
        """Leads from now on, and asks all what they know, once all who came earlier are gone."""
        if not (self._leads or self.is_leaving) and self._is_eldest():
            self._leads = True
            self._unheard = {each.id for each in self.lives.living()} - {self.me.id}
            self._out += [Ask(to, "") for to in sorted(self._unheard)]

    def _end_admissions(self, living: set[WorkerId]) -> None:
        """Lets in those of whom all members have been told."""
        for admission in list(self._admissions.values()):
            admission.told = {each for each in admission.told if each[0] in living}
            if not admission.told:
                del self._admissions[admission.ticket]
                lives = tuple(self.lives.all())
                self._out.append(Admit(admission.ticket, admission.life, lives))
                self._is_unpublished = True

    def _publish(self) -> None:
        """Lets the store be told, by the eldest, once it is sure that it is not itself cut off."""
        is_sure = self._unconfirmed is None and not (self.is_leaving or self._is_out)
        if self._is_unpublished and is_sure and self._is_eldest():
            self._is_unpublished = False
            outside = {admission.life.id for admission in self._admissions.values()}
            lives = (life for life in self.lives.all() if life.id not in outside)
            self._out.append(Confirmed(tuple(lives)))
