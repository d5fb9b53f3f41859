"""Who is ready for what: negotiation by name, as a table without I/O.

Ranks submit operations under names, each in an order of its own. An operation may be performed when
every rank of its process set has submitted it, or has *joined* (is out of data). The table is told
what each rank does, in the order in which that rank did it, and answers with instructions.

What always holds: the answers depend on what each rank did and in which order *it* did so, and not
on how the ranks' doings are interleaved. So every rank may keep a table of its own, filled at its
own pace from the ranks' logs, and all come to the same conclusions without a word about them; only
the order of conclusions may differ. Where one order is needed on all ranks, one table decides.

How a submission finds its partners. A rank's *epoch* is the number of its joins so far. The kth
submission of a name in an epoch meets the kth of every other rank in the same epoch. A rank that
has joined takes no part in what is left of that epoch; once all have joined, the next begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstitch.collectives.rank_names import RankNames
from lockstitch.collectives.requests import Description, Kind, disagreement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What goes on without the ranks that have joined. Of anything else they would owe a part.
_WITHOUT_JOINED = (Kind.ALLREDUCE, Kind.BARRIER)


# ---------------------------------------------------------------- events


class Submitted(NamedTuple):
    """`rank` has submitted an operation. `note` comes back with the instruction."""

    rank: int
    description: Description
    note: Any = None


class Joined(NamedTuple):
    """`rank` is out of data, at a time by which the last to join is told: of any type that can be
    compared."""

    rank: int
    at: Any


class Left(NamedTuple):
    """`rank` has shut down: it submits nothing any more."""

    rank: int


Event = Submitted | Joined | Left

# ---------------------------------------------------------------- instructions


@dataclass(slots=True)
class Perform:
    """All ranks are ready for the operation, and agree about it."""

    name: str
    parts: dict[int, Submitted]
    """By rank, ascending; ranks that have joined are not among them."""

    @property
    def description(self) -> Description:
        """The description of the first rank; sizes may differ where the kind of operation allows
        it."""
        return next(iter(self.parts.values())).description


class Objection:
    """Why an operation is refused."""

    MISMATCH = "mismatch"
    JOINED = "joined"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Refuse:
    """The operation cannot be performed; whoever has submitted it gets the text as an error."""

    name: str
    parts: dict[int, Submitted]
    objection: str
    text: str


@dataclass(frozen=True, slots=True)
class AllJoined:
    """Every rank has joined; `last` did so last, at that time."""

    last: int
    at: Any = field(default=None, compare=False)


Instruction = Perform | Refuse | AllJoined


@dataclass(frozen=True, slots=True)
class Waiting:
    """An operation that some rank has submitted and others have not."""

    name: str
    submitted: tuple[int, ...]
    missing: tuple[int, ...]


# ---------------------------------------------------------------- the table


class _Entry:
    """One operation that is not decided yet."""

    __slots__ = ("epoch", "missing", "parts")

    def __init__(self, epoch: int, missing: int) -> None:
        self.epoch = epoch
        self.missing = missing
        """How many ranks have neither submitted it nor joined."""
        self.parts: dict[int, Submitted] = {}


class Negotiation:
    """The table of one process set. `names`: what objections call its ranks."""

    def __init__(self, ranks: Iterable[int], names: RankNames | None = None) -> None:
        self.ranks = tuple(sorted(ranks))
        self._names = names or RankNames()
        self._open: dict[str, list[_Entry]] = {}
        self._joins: dict[int, list[Any]] = {rank: [] for rank in self.ranks}
        self._joined = [0]
        """How many ranks have joined in each epoch; the last number is 0."""
        self._left: set[int] = set()
        self._finished_epochs = 0
        self.is_plain = True
        """Nobody has joined or left: then the usual case is decided quickly."""

    def __repr__(self) -> str:
        return f"<Negotiation of {len(self.ranks)} ranks · {len(self.waiting())} waiting>"

    def handle(self, event: Event) -> Sequence[Instruction]:
        """Takes in what a rank did; returns what follows from it."""
        if type(event) is Submitted:
            return self._submitted(event)
        if type(event) is Joined:
            self._note_join(event)
            self.is_plain = False
            answers = [*self._decide_all(), *self._end_epochs()]
            self.is_plain = not self._left and not self._joined[self._finished_epochs]
            return answers
        self._left.add(event.rank)
        self.is_plain = False
        return self._decide_all()

    def includes(self, rank: int) -> bool:
        """Returns whether it is one of the ranks."""
        return rank in self._joins

    def expects(self, rank: int) -> bool:
        """Returns whether it is one of the ranks, and has not left."""
        return rank in self._joins and rank not in self._left

    def has_part(self, rank: int) -> bool:
        """Returns whether a rank has submitted what others have not."""
        return any(rank in entry.parts for entries in self._open.values() for entry in entries)

    @property
    def is_waiting(self) -> bool:
        """Whether some rank has submitted what others have not."""
        return bool(self._open)

    def waiting(self) -> list[Waiting]:
        """The operations that some ranks have submitted and others have not."""
        return [
            Waiting(name, tuple(sorted(entry.parts)), tuple(self._missing(entry)))
            for name, entries in self._open.items()
            for entry in entries
        ]

    def missing(self, name: str, rank: int) -> tuple[int, ...]:
        """Returns whom `rank` waits for under this name."""
        for entry in self._open.get(name, ()):
            if rank in entry.parts:
                return tuple(self._missing(entry))
        return ()

    def wants(self, rank: int) -> bool:
        """Returns whether others wait for something that this rank has not submitted."""
        return any(self._lacks(entry, rank) for entries in self._open.values() for entry in entries)

    def not_joined(self) -> tuple[int, ...]:
        """The ranks that have not joined in the current epoch."""
        return tuple(r for r, times in self._joins.items() if len(times) <= self._finished_epochs)

    # ------------------------------------------------------------ inside

    def _submitted(self, event: Submitted) -> Sequence[Instruction]:
        rank, description, _ = event
        name = description.name
        epoch = len(self._joins[rank])
        entries = self._open.get(name)
        if entries is None:
            entry = self._new_entry(epoch)
            entries = self._open[name] = [entry]
        else:
            for entry in entries:
                if rank not in entry.parts and entry.epoch == epoch:
                    break
            else:
                entry = self._new_entry(epoch)
                entries.append(entry)
        parts = entry.parts
        parts[rank] = event
        entry.missing -= 1
        if self.is_plain:
            if len(parts) < len(self.ranks):
                return ()
            for each in parts.values():
                if each.description is not description:
                    break
            else:
                if len(entries) == 1:
                    del self._open[name]
                    return (Perform(name, {rank: parts[rank] for rank in self.ranks}),)
        return self._decide(name, entry)

    def _new_entry(self, epoch: int) -> _Entry:
        return _Entry(epoch, len(self.ranks) - self._joined[epoch])

    def _note_join(self, event: Joined) -> None:
        times = self._joins[event.rank]
        epoch = len(times)
        for entries in self._open.values():
            for entry in entries:
                entry.missing -= entry.epoch == epoch and event.rank not in entry.parts
        times.append(event.at)
        self._joined[epoch] += 1
        if len(self._joined) == epoch + 1:
            self._joined.append(0)

    def _lacks(self, entry: _Entry, rank: int) -> bool:
        """Returns whether the rank has neither submitted it nor joined."""
        joins = self._joins.get(rank)
        return joins is not None and rank not in entry.parts and len(joins) <= entry.epoch

    def _missing(self, entry: _Entry) -> list[int]:
        return [rank for rank in self.ranks if self._lacks(entry, rank)]

    def _decide_all(self) -> list[Instruction]:
        undecided = [(name, entry) for name, entries in self._open.items() for entry in entries]
        return [what for name, entry in undecided for what in self._decide(name, entry)]

    def _decide(self, name: str, entry: _Entry) -> Sequence[Instruction]:
        is_hopeless = any(self._lacks(entry, rank) for rank in self._left)
        if entry.missing and not is_hopeless:
            return ()
        entries = self._open[name]
        entries.remove(entry)
        if not entries:
            del self._open[name]
        parts = {rank: entry.parts[rank] for rank in self.ranks if rank in entry.parts}
        if is_hopeless:
            gone = [rank for rank in self._missing(entry) if rank in self._left]
            who = self._names.in_words(gone)
            text = f"{name!r} can never be performed: {who} shut down without it"
            return [Refuse(name, parts, Objection.LEFT, text)]
        return [judged(name, parts, self.ranks, self._names)]

    def _end_epochs(self) -> list[Instruction]:
        ended: list[Instruction] = []
        while self._joined[self._finished_epochs] == len(self.ranks):
            epoch = self._finished_epochs
            times = [(times[epoch], rank) for rank, times in self._joins.items()]
            self._finished_epochs += 1
            at, last = max(times)
            ended.append(AllJoined(last, at))
        return ended


def judged(
    name: str, parts: dict[int, Submitted], ranks: Sequence[int], names: RankNames
) -> Perform | Refuse:
    """Returns what follows when every rank has submitted, with these parts, or has joined: whether
    it all fits."""
    difference = disagreement({rank: part.description for rank, part in parts.items()}, names)
    if difference is not None:
        text = (
            f"ranks disagree about {name!r}. {difference}. All must give the same; nothing was "
            "done, and other operations go on."
        )
        return Refuse(name, parts, Objection.MISMATCH, text)
    ready = Perform(name, parts)
    if len(parts) < len(ranks) and ready.description.kind not in _WITHOUT_JOINED:
        joined = [rank for rank in ranks if rank not in parts]
        text = (
            f"{ready.description.kind.value} {name!r} needs every rank, but "
            f"{names.in_words(joined)} joined, having no more data"
        )
        return Refuse(name, parts, Objection.JOINED, text)
    return ready
