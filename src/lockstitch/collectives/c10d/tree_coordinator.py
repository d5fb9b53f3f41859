"""What rank 0 decides for all where speakers speak for many: it hears each name once from each of
them, and tells each of them once. No I/O here.

From when the first rank has shut down it hears every rank again, through them, and decides as
`coordinator` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lockstitch.collectives.c10d.coordinator import (
    SIZES_DIFFER,
    Coordinator,
    fusion_key,
    size_of,
)
from lockstitch.collectives.c10d.matching import (
    Complete,
    Matching,
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
    Missing,
    Order,
    Plain,
    Refused,
    Submit,
    Via,
    pack_described,
)
from lockstitch.collectives.c10d.routes import Addressed, Routes
from lockstitch.collectives.c10d.speaker import MOST_NAMED, missing_ranks
from lockstitch.collectives.c10d.undecided import Undecided
from lockstitch.collectives.fusion import buckets
from lockstitch.collectives.negotiation import Refuse, Submitted, judged
from lockstitch.collectives.rank_names import RankNames
from lockstitch.collectives.requests import Description
from lockstitch.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from lockstitch.collectives.c10d.tree import Place

_MOST_KEPT = 1 << 16


class _Ready(NamedTuple):
    """What all ranks of a set have submitted, and may be performed with others."""

    complete: Complete
    description: Description


class TreeCoordinator:
    """The tables of rank 0, whose place is the root of the tree, in a session of `size` ranks.
    `names`: what objections call them."""

    def __init__(
        self, place: Place, size: int, fusion_bytes: int, names: RankNames | None = None
    ) -> None:
        self._place = place
        self._size = size
        self._names = names or RankNames()
        self._fusion_bytes = fusion_bytes
        self._routes = Routes(place)
        self._matching = Matching(sources_of(place))
        self._undecided = Undecided(rank for rank in self._matching.sources if rank >= 0)
        self._lacking: dict[tuple[int, int, str], tuple[int, ...]] = {}
        self._descriptions: dict[str, Description] = {}
        self._flat: Coordinator | None = None
        """Decides once nobody speaks for others any more."""
        self._is_over = False

    def __repr__(self) -> str:
        return f"<TreeCoordinator of {self._size} ranks in {len(self._matching.sources)} sources>"

    def hear(self, told: Iterable[tuple[int, Message]]) -> list[Addressed]:
        """Takes in what those that talk to rank 0 have told, all that is there at this moment;
        returns the answers."""
        ready: list[_Ready] = []
        addressed: list[Addressed] = []
        for teller, message in told:
            try:
                self._take_in(teller, message, ready, addressed)
            except ProtocolError as error:
                addressed += self.lost(teller, f"said what makes no sense ({error})")
        self._order(ready, addressed)
        return addressed

    def lost(self, rank: int, why: str = UNREACHED) -> list[Addressed]:
        """A rank's connection has ended, or it does not go on; see `Lost`. Nobody need be told if
        it had said goodbye, or of a second one."""
        if self._routes.has_gone(rank):
            return []
        self._routes.note_gone(rank)
        if self._is_over:
            return []
        self._is_over = True
        return self._to_all(Lost(rank, why))

    # ------------------------------------------------------------ inside

    def _take_in(
        self, teller: int, message: Message, ready: list[_Ready], addressed: list[Addressed]
    ) -> None:
        rank = teller
        if isinstance(message, Via):
            rank, message = message.rank, message.message
            if isinstance(message, (Ask, AskNamed)) and self._flat is None:
                addressed.append(self._answer(rank, message))
                return
        elif teller not in self._undecided:
            self._hear_speaker(teller, message, ready, addressed)
            return
        if isinstance(message, Lost):
            addressed += self.lost(message.rank, message.why)
        elif isinstance(message, Fail):
            addressed += self.lost(rank, f"could not go on: {message.why}")
        elif isinstance(message, Leave) or self._flat is not None:
            if isinstance(message, Leave):
                self._routes.note_left(rank)
            self._loosen(ready, addressed)
            self._hear_loosely(rank, message, addressed)
        else:
            self._undecided.note(rank, message)
            self._hear_source(rank, message, ready, addressed)

    def _hear_speaker(
        self, speaker: int, message: Plain, ready: list[_Ready], addressed: list[Addressed]
    ) -> None:
        """A speaker speaks for its ranks."""
        if isinstance(message, Lost):
            addressed += self.lost(message.rank, message.why)
        elif isinstance(message, Loosen):
            self._loosen(ready, addressed)
        elif self._flat is None:  # else it says that again, rank by rank
            self._hear_source(speaker_source(speaker), message, ready, addressed)

    def _hear_source(
        self, source: int, message: Plain, ready: list[_Ready], addressed: list[Addressed]
    ) -> None:
        complete: list[Complete] = []
        ended: list[int] = []
        if isinstance(message, Submit):
            if message.content:
                raise ProtocolError("tensors do not ride where speakers speak")
            complete = self._matching.submit(source, message.number)
            if self._lacking:
                content = self._matching.content_of(source, message.number)
                self._lacking.pop((source, content.set_id, content.name), None)
        elif isinstance(message, (Define, DefineRow)):
            self._matching.define(source, message)
        elif isinstance(message, Join):
            complete, ended = self._matching.join(source, source)
        elif isinstance(message, JoinAll):
            complete, ended = self._matching.join(source, message.last)
        elif isinstance(message, Lacking):
            self._lacking[source, message.set_id, message.name] = message.ranks
        elif isinstance(message, Ask):
            addressed.append(self._answer(source, message))
        for each in complete:
            self._decide(each, ready, addressed)
        for last in ended:
            self._undecided.settle_joins()
            addressed += self._to_all(Joined(last))

    def _decide(self, complete: Complete, ready: list[_Ready], addressed: list[Addressed]) -> None:
        for source, number in complete.parts.items():
            if source >= 0:
                self._undecided.settle(source, number)
        content = complete.content
        if content.uniform is not None:
            description = self._described(content.uniform)
            if description.kind not in SIZES_DIFFER:
                ready.append(_Ready(complete, description))
                return
        addressed += self._judge(complete)

    def _judge(self, complete: Complete) -> list[Addressed]:
        """Decides where ranks have submitted what differs, or have joined."""
        set_id, row = complete.content.set_id, self._matching.row_of(complete)
        parts = {
            rank: Submitted(rank, self._described(text))
            for rank, text in row.items()
            if text is not None
        }
        verdict = judged(complete.content.name, parts, tuple(row), self._names)
        if isinstance(verdict, Refuse):
            return [
                self._routes.to_source(source, Refused(number, verdict.objection, verdict.text))
                for source, number in complete.parts.items()
            ]
        described = pack_described(tuple(row.values()))
        return [
            self._routes.to_source(
                source, Detailed(complete.parts.get(source, -1), set_id, described)
            )
            for source in self._matching.sources_in(set_id)
        ]

    def _order(self, ready: list[_Ready], addressed: list[Addressed]) -> None:
        """Gives the orders for what is ready."""
        for bucket in buckets(ready, _key, _size, self._fusion_bytes):
            addressed += self._orders(bucket)
        ready.clear()

    def _orders(self, bucket: list[_Ready]) -> list[Addressed]:
        return [
            self._routes.to_source(
                source, Order(tuple(ready.complete.parts[source] for ready in bucket))
            )
            for source in bucket[0].complete.parts
        ]

    def _described(self, text: str) -> Description:
        description = self._descriptions.get(text)
        if description is None:
            if len(self._descriptions) >= _MOST_KEPT:
                self._descriptions.clear()
            description = Description.decode(text.encode("utf-8", "replace"))
            self._descriptions[text] = description
        return description

    # ------------------------------------------------------------ once a rank has shut down

    def _hear_loosely(self, rank: int, message: Plain, addressed: list[Addressed]) -> None:
        if rank in self._undecided:
            again = self._undecided.again(rank, message)
            self._tell_flat(((rank, each) for each in again), addressed)
        else:
            self._tell_flat([(rank, message)], addressed)

    def _loosen(self, ready: list[_Ready], addressed: list[Addressed]) -> None:
        """From now on nobody speaks for others. What is ready is ordered before speakers hear of
        it, or they would say again what is decided."""
        if self._flat is None:
            self._order(ready, addressed)
            self._flat = Coordinator(self._size, self._fusion_bytes, self._names)
            addressed += [Addressed(speaker, Loosen()) for speaker in self._place.speakers]
            self._tell_flat(self._undecided.all(), addressed)

    def _tell_flat(self, told: Iterable[tuple[int, Plain]], addressed: list[Addressed]) -> None:
        assert self._flat is not None
        for to, message in self._flat.hear(told):
            assert not isinstance(message, Via)
            addressed.append(self._routes.to(to, message))

    # ------------------------------------------------------------ who waits for whom

    def _answer(self, rank: int, ask: Ask | AskNamed) -> Addressed:
        """Answers a rank that asks for whom it waits, or whether somebody waits for it."""
        open_names = self._matching.open_names()
        if isinstance(ask, Ask) and ask.number == ANYTHING:
            known = {(set_id, name) for _, set_id, name in self._lacking} | open_names.keys()
            is_wanted = any(rank in self._missing(*key, open_names.get(key)) for key in known)
            return self._routes.to(rank, Missing(ANYTHING, (rank,) * is_wanted))
        if isinstance(ask, AskNamed):
            set_id, name = ask.set_id, ask.name
        else:
            content = self._matching.content_of(rank, ask.number)
            set_id, name = content.set_id, content.name
        ranks = self._missing(set_id, name, open_names.get((set_id, name)))
        return self._routes.to(rank, Missing(ask.number, ranks[:MOST_NAMED]))

    def _missing(self, set_id: int, name: str, sources: tuple[int, ...] | None) -> tuple[int, ...]:
        """Returns which ranks are missing under a name; where nothing has come from anywhere yet,
        those that speakers have named."""
        if sources is None:
            sources = tuple(
                source
                for source in self._matching.sources
                if (source, set_id, name) in self._lacking
            )
        return missing_ranks(self._matching, self._lacking, set_id, name, sources)

    def _to_all(self, message: Plain) -> list[Addressed]:
        # The last first: rank 0, where this is decided, has most to do when it hears.
        branches = sorted(self._place.branches, reverse=True)
        return [Addressed(each, message) for each in (*branches, self._place.rank)]


def _key(ready: _Ready) -> Hashable | None:
    key = fusion_key(ready.description)
    return None if key is None else (ready.complete.content.set_id, key)


def _size(ready: _Ready) -> int:
    return size_of(ready.description)
