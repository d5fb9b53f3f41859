"""A speaker, which speaks for the ranks below it as for one. No I/O here.

    ranks, speakers ── Submit, Join ─▶ Speaker ── Submit, JoinAll ─▶ rank 0, or another speaker
                   ◀─ Order, Refused ─        ◀─ Order, Refused ───

It says that a name is submitted when all its ranks have submitted it, and hands the order round
when that comes; what rank 0 has to do for a name thus does not grow with the ranks below.

When the first rank shuts down, speaking for others ends everywhere: from then on rank 0 has to know
who has submitted what, to refuse what can never be performed. It is asked to say so to all
(`Loosen`), and each speaker then says again, rank by rank, what is not decided yet, and passes on
what is said after that. Nothing is said twice that rank 0 had decided: its orders come before.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from lockstitch.collectives.c10d.matching import (
    Complete,
    Content,
    Matching,
    Row,
    sources_of,
    speaker_source,
)
from lockstitch.collectives.c10d.messages import (
    ANYTHING,
    UNREACHED,
    Ask,
    AskNamed,
    Define,
    DefineRow,
    Detailed,
    Fail,
    Join,
    JoinAll,
    Joined,
    Lacking,
    Leave,
    Loosen,
    Lost,
    Message,
    Order,
    Plain,
    Refused,
    Submit,
    Via,
    Welcome,
)
from lockstitch.collectives.c10d.routes import Addressed, Routes
from lockstitch.collectives.c10d.undecided import Undecided
from lockstitch.collectives.requests import GLOBAL_SET
from lockstitch.errors import ProtocolError
from lockstitch.link.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstitch.collectives.c10d.tree import Place

_MOST_NUMBERS: Final = 1 << 16
MOST_NAMED: Final = 64
"""Of ranks that are missing so many are told upwards."""


class Speaker:
    """What the speaker at a place decides. Whom its answers are for: a rank that talks to it, its
    own, or its parent."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._parent = place.parent
        self._routes = Routes(place)
        self._matching = Matching(sources_of(place))
        self._undecided = Undecided(rank for rank in self._matching.sources if rank >= 0)
        self._numbers: dict[tuple[int, str | Row], int] = {}
        self._last_number = -1
        self._told_sets = {GLOBAL_SET}
        self._set_ranks: dict[int, tuple[int, ...]] = {}
        """Those of a whole process set, as they were told."""
        self._sent: dict[int, deque[Complete]] = defaultdict(deque)
        """What it has said under each number and is not decided."""
        self._lacking: dict[tuple[int, int, str], tuple[int, ...]] = {}
        """What speakers below have told of ranks that are missing."""
        self._said_lacking: dict[tuple[int, str], tuple[int, ...]] = {}
        self._open: set[tuple[int, str]] = set()
        """What was open when the time was looked at last."""
        self._is_loose = False

    def __repr__(self) -> str:
        return f"<Speaker at rank {self._place.rank} for {len(self._matching.ranks)} ranks>"

    # ------------------------------------------------------------ from below

    def hear(self, told: Iterable[tuple[int, Message]]) -> list[Addressed]:
        """Takes in what its parent and those that talk to it have told; returns what follows.
        Raises `ProtocolError` for what its parent cannot say."""
        addressed: list[Addressed] = []
        for teller, message in told:
            if teller == self._parent:
                addressed += self._obey(message)
                continue
            if isinstance(message, Via):
                if isinstance(message.message, Leave):
                    self._routes.note_left(message.rank)
                addressed.append(self._upwards(message))
                continue
            try:
                addressed += self._take_in(teller, message)
            except ProtocolError as error:
                addressed += self.lost(teller, f"said what makes no sense ({error})")
        return addressed

    def lost(self, rank: int, why: str = UNREACHED) -> list[Addressed]:
        """The connection to a rank that talks to it, or to its parent, has ended, or makes no sense
        any more."""
        if self._routes.has_gone(rank):
            return []
        self._routes.note_gone(rank)
        if rank == self._parent:
            return self._to_all(Lost(rank, why))
        return [self._upwards(Lost(rank, why))]

    def leave(self) -> list[Addressed]:
        """Nobody is here to speak any more: all below are out of it, too, unless they have left.
        Its own rank has left, and nobody speaks for others any more."""
        left = [rank for rank in self._matching.ranks if not self._routes.has_left(rank)]
        return [
            *(self._upwards(Via(rank, Leave())) for rank in left),
            *(Addressed(branch, Leave(self._place.rank)) for branch in self._place.branches),
        ]

    def pass_time(self) -> list[Addressed]:
        """Is called now and then while somebody waits. Tells upwards who is missing under names
        that have been open since the last time."""
        if self._is_loose:
            return []
        open_now = self._missing_ranks()
        told: list[Addressed] = []
        for key in self._open & open_now.keys():
            if self._said_lacking.get(key) != open_now[key]:
                self._said_lacking[key] = open_now[key]
                told.append(self._upwards(Lacking(*key, open_now[key])))
        self._open = set(open_now)
        for key in self._said_lacking.keys() - open_now.keys():
            del self._said_lacking[key]
        return told

    @property
    def is_loose(self) -> bool:
        """Whether it speaks for nobody any more, and may go."""
        return self._is_loose

    @property
    def is_waiting(self) -> bool:
        """Whether some have submitted what others have not."""
        return not self._is_loose and self._matching.is_waiting

    # ------------------------------------------------------------ inside

    def _take_in(self, teller: int, message: Plain) -> list[Addressed]:
        if isinstance(message, (Lost, Loosen)):
            return [self._upwards(message)]
        if isinstance(message, Fail):
            return [self._upwards(Via(teller, message))]
        is_rank = teller in self._undecided
        if isinstance(message, Leave):
            self._routes.note_left(teller)
        if self._is_loose:
            # A speaker below may not have heard of it yet, and says it all again.
            again = self._undecided.again(teller, message) if is_rank else ()
            return [self._upwards(Via(teller, each)) for each in again]
        if is_rank:
            self._undecided.note(teller, message)
        if isinstance(message, Leave):
            return [self._upwards(Loosen())]
        source = teller if is_rank else speaker_source(teller)
        if isinstance(message, Ask):
            return [self._upwards(Via(teller, self._question(source, message)))]
        return self._hear_source(source, message)

    def _hear_source(self, source: int, message: Plain) -> list[Addressed]:
        if isinstance(message, Submit):
            return self._submit(source, message)
        if isinstance(message, (Define, DefineRow)):
            if message.ranks:
                self._set_ranks.setdefault(message.set_id, message.ranks)
            self._matching.define(source, message)
        elif isinstance(message, Join):
            return self._join(source, source)
        elif isinstance(message, JoinAll):
            return self._join(source, message.last)
        elif isinstance(message, Lacking):
            self._lacking[source, message.set_id, message.name] = message.ranks
        return []

    def _submit(self, source: int, message: Submit) -> list[Addressed]:
        if message.content:
            raise ProtocolError("tensors do not ride where speakers speak")
        complete = self._matching.submit(source, message.number)
        if self._lacking:
            content = self._matching.content_of(source, message.number)
            self._lacking.pop((source, content.set_id, content.name), None)
        return [said for each in complete for said in self._say(each)]

    def _join(self, source: int, last: int) -> list[Addressed]:
        complete, ended = self._matching.join(source, last)
        return [
            *(said for each in complete for said in self._say(each)),
            *(self._upwards(JoinAll(each)) for each in ended),
        ]

    def _say(self, complete: Complete) -> list[Addressed]:
        """Says that all below have submitted something; first what the number means."""
        said = []
        content = complete.content
        self._said_lacking.pop((content.set_id, content.name), None)  # it may be open once more
        meaning = content.uniform if content.row is None else content.row
        assert meaning is not None
        number = self._numbers.get((content.set_id, meaning))
        if number is None:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            self._last_number = number = self._last_number + 1
            self._numbers[content.set_id, meaning] = number
            said.append(self._upwards(self._definition(number, content)))
        self._sent[number].append(complete)
        return [*said, self._upwards(Submit(number))]

    def _definition(self, number: int, content: Content) -> Define | DefineRow:
        set_id, is_known = content.set_id, content.set_id in self._told_sets
        ranks = () if is_known else self._set_ranks[set_id]
        self._told_sets.add(set_id)
        if content.row is None:
            assert content.uniform is not None
            return Define(number, set_id, ranks, content.uniform)
        return DefineRow(number, set_id, ranks, content.name, Runs.of(content.row))

    def _obey(self, message: Message) -> list[Addressed]:
        """Takes in what its parent says; returns what to tell those below and its own rank."""
        if isinstance(message, Via):
            return [self._routes.to(message.rank, message.message)]
        if isinstance(message, Order):
            return self._hand_round(message)
        if isinstance(message, (Detailed, Refused)):
            return self._hand_one_round(message)
        if isinstance(message, Loosen):
            return self._loosen()
        if isinstance(message, Joined):
            self._undecided.settle_joins()
        if isinstance(message, Leave):
            self._routes.note_left(self._parent)
        if isinstance(message, (Joined, Lost, Welcome, Leave)):
            return self._to_all(message)
        raise ProtocolError(f"a speaker is not told {type(message).__name__}")

    def _hand_round(self, order: Order) -> list[Addressed]:
        """Gives each source the numbers that are its own."""
        numbers: dict[int, list[int]] = defaultdict(list)
        for number in order.numbers:
            for source, own in self._decided(number).parts.items():
                numbers[source].append(own)
        return [
            self._routes.to_source(source, Order(tuple(own))) for source, own in numbers.items()
        ]

    def _hand_one_round(self, message: Detailed | Refused) -> list[Addressed]:
        if message.number == -1 and isinstance(message, Detailed):  # all here have joined
            sources = self._matching.sources_in(message.set_id)
            return [self._routes.to_source(source, message) for source in sources]
        complete = self._decided(message.number)
        told = []
        for source in self._matching.sources_in(complete.content.set_id):
            number = complete.parts.get(source)
            if isinstance(message, Detailed):
                own = -1 if number is None else number
                detailed = Detailed(own, message.set_id, message.described)
                told.append(self._routes.to_source(source, detailed))
            elif number is not None:
                refused = Refused(number, message.objection, message.text)
                told.append(self._routes.to_source(source, refused))
        return told

    def _decided(self, number: int) -> Complete:
        """The first of what was said under a number is decided."""
        sent = self._sent.get(number)
        if not sent:
            raise ProtocolError(f"an answer to {number}, which was not said")
        complete = sent.popleft()
        if not sent:
            del self._sent[number]
        for source, own in complete.parts.items():
            if source >= 0:
                self._undecided.settle(source, own)
        return complete

    def _loosen(self) -> list[Addressed]:
        """Speaks for nobody any more."""
        if self._is_loose:
            return []
        self._is_loose = True
        return [
            *(Addressed(speaker, Loosen()) for speaker in self._place.speakers),
            *(self._upwards(Via(rank, message)) for rank, message in self._undecided.all()),
        ]

    def _question(self, source: int, ask: Ask) -> Plain:
        if ask.number == ANYTHING:
            return ask
        content = self._matching.content_of(source, ask.number)
        return AskNamed(ask.number, content.set_id, content.name)

    def _missing_ranks(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """Returns, under each open name, which ranks are missing, as far as it is known here."""
        return {
            key: missing_ranks(self._matching, self._lacking, *key, sources)[:MOST_NAMED]
            for key, sources in self._matching.open_names().items()
        }

    def _upwards(self, message: Message) -> Addressed:
        return Addressed(self._parent, message)

    def _to_all(self, message: Plain) -> list[Addressed]:
        return [Addressed(rank, message) for rank in (*self._place.branches, self._place.rank)]


def missing_ranks(
    matching: Matching,
    lacking: dict[tuple[int, int, str], tuple[int, ...]],
    set_id: int,
    name: str,
    sources: Iterable[int],
) -> tuple[int, ...]:
    """Returns which ranks of the sources are missing: those that a speaker has named (`lacking`),
    else all for which it speaks."""
    found: list[int] = []
    for source in sources:
        told = lacking.get((source, set_id, name))
        found += matching.ranks_in(source, set_id) if told is None else told
    return tuple(sorted(found))
