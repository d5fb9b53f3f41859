"""What a node of the tree knows of what its branches have submitted: who meets whom. No I/O.

A *source* is somebody who submits: a rank (its number), or all ranks for which a speaker speaks, as
one (`speaker_source`). Such a source has submitted a name when each of its ranks has, or has
joined; and it has joined when all of them have. So the table by which a session is negotiated
(`negotiation`) does for sources, too.

What the ranks of a source have submitted is a *row*: their descriptions, by rank, None for those
that have joined. Where all are the same, which is most often so, the row is that one description.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lockstitch.collectives.c10d.messages import Define, DefineRow
from lockstitch.collectives.negotiation import (
    AllJoined,
    Joined,
    Negotiation,
    Perform,
    Submitted,
)
from lockstitch.collectives.requests import GLOBAL_SET, Description, Kind
from lockstitch.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lockstitch.collectives.c10d.tree import Place

Row = tuple["str | None", ...]
_MOST_KEPT = 1 << 16


def speaker_source(rank: int) -> int:
    """Returns the source that a speaker speaks for: its own rank is among those."""
    return -1 - rank


def sources_of(place: Place) -> dict[int, tuple[int, ...]]:
    """Returns the ranks of each source at a node, the node itself being one."""
    sources: dict[int, tuple[int, ...]] = {place.rank: (place.rank,)}
    for branch, ranks in place.branches.items():
        sources[branch if len(ranks) == 1 else speaker_source(branch)] = ranks
    return sources


class Content(NamedTuple):
    """What a source means by a number."""

    set_id: int
    name: str
    uniform: str | None
    """The description, where it is the same for all ranks of the source; else there is a row."""
    row: Row | None


@dataclass(frozen=True, slots=True)
class Complete:
    """All sources have submitted it. `parts`: the number of each; those that have joined lack."""

    content: Content
    parts: Mapping[int, int]


class Matching:
    """The sources of a node and their tables. Raises `ProtocolError` for what makes no sense."""

    def __init__(self, sources: Mapping[int, tuple[int, ...]]) -> None:
        self.sources = dict(sources)
        self.ranks = tuple(sorted(rank for ranks in sources.values() for rank in ranks))
        self._everybody = frozenset(self.ranks)
        self._tables = {GLOBAL_SET: Negotiation(self.sources)}
        self._set_ranks: dict[int, frozenset[int]] = {}
        self._known: dict[tuple[int, int], Content] = {}
        self._contents: dict[str, str] = {}
        self._names: dict[str, Description] = {}
        self._joins = itertools.count()

    def __repr__(self) -> str:
        return f"<Matching of {len(self.sources)} sources · {len(self.ranks)} ranks>"

    # ------------------------------------------------------------ events

    def define(self, source: int, message: Define | DefineRow) -> None:
        """Takes in what a source means by a number."""
        self._learn_set(message.set_id, message.ranks)
        members = self.ranks_in(source, message.set_id)
        if not members:
            raise ProtocolError(f"it is not of the process set {message.set_id}")
        if isinstance(message, Define):
            text = self._contents.setdefault(message.content, message.content)
            name = Description.decode(text.encode("utf-8", "replace")).name
            content = Content(message.set_id, name, text, None)
        else:
            try:
                row = message.row.row()
            except ValueError as error:
                raise ProtocolError(str(error)) from error
            if len(row) != len(members):
                raise ProtocolError(f"{len(row)} descriptions for {len(members)} ranks")
            content = Content(message.set_id, message.name, None, row)
        self._bound()
        self._known[source, message.number] = content

    def submit(self, source: int, number: int) -> list[Complete]:
        """A source has submitted; returns what is complete now."""
        content = self.content_of(source, number)
        # The table finds who meets whom, and need not know more than the name.
        stand_in = self._names.get(content.name)
        if stand_in is None:
            stand_in = self._names[content.name] = Description(Kind.BARRIER, content.name)
        event = Submitted(source, stand_in, number)
        found = self._tables[content.set_id].handle(event)
        return [self._complete(content, each) for each in found if isinstance(each, Perform)]

    def join(self, source: int, last: int) -> tuple[list[Complete], list[int]]:
        """A source has joined, the rank `last` of it last; returns what is complete now, and who
        was last, for each time that all have joined by now."""
        table = self._tables[GLOBAL_SET]
        complete, ended = [], []
        for each in table.handle(Joined(source, (next(self._joins), last))):
            if isinstance(each, Perform):
                number = next(iter(each.parts.values())).note
                content = self.content_of(next(iter(each.parts)), number)
                complete.append(self._complete(content, each))
            else:
                assert isinstance(each, AllJoined)  # nobody leaves, and all agree
                ended.append(each.at[1])
        return complete, ended

    # ------------------------------------------------------------ questions

    def content_of(self, source: int, number: int) -> Content:
        """Returns what a source means by a number."""
        content = self._known.get((source, number))
        if content is None:
            raise ProtocolError(f"it names {number}, which it has not described")
        return content

    def ranks_in(self, source: int, set_id: int) -> tuple[int, ...]:
        """Returns the ranks of a source that are in a process set, ascending."""
        ranks = self.sources[source]
        members = self._set_ranks.get(set_id)
        return ranks if members is None else tuple(rank for rank in ranks if rank in members)

    def set_ranks(self, set_id: int) -> tuple[int, ...]:
        """Returns the ranks of this node that are in a process set, ascending."""
        members = self._set_ranks.get(set_id)
        return self.ranks if members is None else tuple(sorted(members & self._everybody))

    def sources_in(self, set_id: int) -> tuple[int, ...]:
        """Returns the sources that have ranks in a process set."""
        return self._tables[set_id].ranks

    def row_of(self, complete: Complete) -> dict[int, str | None]:
        """Returns the descriptions by rank, ascending; None for who has joined."""
        set_id = complete.content.set_id
        found: dict[int, str | None] = dict.fromkeys(self.set_ranks(set_id))
        for source, number in complete.parts.items():
            content = self.content_of(source, number)
            members = self.ranks_in(source, set_id)
            row: Sequence[str | None] = content.row or [content.uniform] * len(members)
            found.update(zip(members, row, strict=True))
        return found

    def open_names(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """Returns which sources are missing under each name of a process set that others have
        submitted; of several under one name, the first."""
        found: dict[tuple[int, str], tuple[int, ...]] = {}
        for set_id, table in self._tables.items():
            for waiting in table.waiting():
                found.setdefault((set_id, waiting.name), waiting.missing)
        return found

    @property
    def is_waiting(self) -> bool:
        """Whether some sources have submitted what others have not."""
        return any(table.is_waiting for table in self._tables.values())

    # ------------------------------------------------------------ inside

    def _learn_set(self, set_id: int, ranks: tuple[int, ...]) -> None:
        if set_id in self._tables:
            return
        if not ranks:
            raise ProtocolError(f"nobody has said which ranks are in process set {set_id}")
        self._set_ranks[set_id] = frozenset(ranks)
        self._tables[set_id] = Negotiation(
            source for source in self.sources if self.ranks_in(source, set_id)
        )

    def _bound(self) -> None:
        for kept in (self._contents, self._names):
            if len(kept) >= _MOST_KEPT:
                kept.clear()

    def _complete(self, last: Content, found: Perform) -> Complete:
        """Puts together what the sources have submitted, `last` among it."""
        parts = {source: part.note for source, part in found.parts.items()}
        uniform = last.uniform
        known = self._known
        if uniform is not None and len(parts) == len(self._tables[last.set_id].ranks):
            for source, number in parts.items():
                if known[source, number].uniform is not uniform:
                    break
            else:
                return Complete(last, parts)
        complete = Complete(last, parts)
        row = tuple(self.row_of(complete).values())
        first = row[0]
        if first is not None and all(each == first for each in row):
            return Complete(Content(last.set_id, last.name, first, None), parts)
        return Complete(Content(last.set_id, last.name, None, row), parts)
