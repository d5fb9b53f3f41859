"""What rank 0 decides for all: tables of all process sets, messages in, messages out. No I/O.

An order goes out only when every rank of its set is ready: rank 0's own order of submissions would
be a deadlock wherever another rank's differs. All ranks get their orders in the same order. Where
the tensors of all have come with the submissions there is nothing to order but a result. A rank
that says what makes no sense counts as lost, and so does one that says that it cannot go on.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from lockstitch.collectives.arithmetic import element_count
from lockstitch.collectives.c10d import riding
from lockstitch.collectives.c10d.ahead import MOST_RANKS, Foresight
from lockstitch.collectives.c10d.messages import (
    ANYTHING,
    UNREACHED,
    Ask,
    Define,
    Detailed,
    Done,
    Fail,
    Join,
    Joined,
    Leave,
    Lost,
    Message,
    Missing,
    Order,
    Refused,
    Submit,
    pack_described,
)
from lockstitch.collectives.c10d.routes import Addressed
from lockstitch.collectives.fusion import buckets
from lockstitch.collectives.negotiation import (
    AllJoined,
    Instruction,
    Left,
    Negotiation,
    Perform,
    Submitted,
)
from lockstitch.collectives.negotiation import Joined as HasJoined
from lockstitch.collectives.requests import GLOBAL_SET, Description, Kind, ReduceOp, dtype_named
from lockstitch.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from lockstitch.collectives.rank_names import RankNames

SIZES_DIFFER = (Kind.ALLGATHER, Kind.ALLTOALL)
"""Of these each rank must know the sizes of all others."""


class _Submission(NamedTuple):
    """What a rank has said with a submission: its own number for it, and its tensors if they ride
    along, or the number of what it has sent ahead."""

    number: int
    content: bytes
    ahead: int


class _Known(NamedTuple):
    set_id: int
    description: Description
    content: str


class Coordinator:
    """The tables of all process sets at rank 0: takes in what ranks submit, and returns what to
    tell them."""

    def __init__(self, size: int, fusion_bytes: int, names: RankNames | None = None) -> None:
        self._fusion_bytes = fusion_bytes
        self._names = names
        self._tables = {GLOBAL_SET: Negotiation(range(size), names)}
        self._known: dict[tuple[int, int], _Known] = {}
        self._contents: dict[str, Description] = {}
        self._foresight = Foresight()
        self._joins = itertools.count()
        self._gone: set[int] = set()
        self._is_over = False
        """Whether all have been told that a rank is lost."""

    def hear(self, told: Iterable[tuple[int, Message]]) -> list[Addressed]:
        """Takes in what ranks have told, all that is there at this moment; returns the answers."""
        ready: list[tuple[int, Perform]] = []
        addressed: list[Addressed] = []
        for rank, message in told:
            if rank in self._gone:
                continue
            try:
                instructions = self._take_in(rank, message, addressed)
            except ProtocolError as error:
                addressed += self.lost(rank, f"said what makes no sense ({error})")
                continue
            for set_id, instruction in instructions:
                if isinstance(instruction, Perform) and not _rides(instruction):
                    ready.append((set_id, instruction))
                else:
                    addressed += self._answers(set_id, instruction)
        is_alone = len(ready) == 1 and not any(t.is_waiting for t in self._tables.values())
        for bucket in buckets(ready, self._fusion_key, _size, self._fusion_bytes):
            addressed += self._orders(bucket, is_alone=is_alone)
        return addressed

    def lost(self, rank: int, why: str = UNREACHED) -> list[Addressed]:
        """A rank's connection has ended, or it does not go on; see `Lost`. It is no loss if it had
        said goodbye, and nobody need be told of a second one: the session is over by then."""
        if rank in self._gone:
            return []
        self._gone.add(rank)
        if self._is_over:
            return []
        self._is_over = True
        everybody = self._tables[GLOBAL_SET].ranks
        # The last first: rank 0, where this is decided, has most to do when it hears.
        return [
            Addressed(each, Lost(rank, why)) for each in everybody[::-1] if each not in self._gone
        ]

    # ------------------------------------------------------------ inside

    def _take_in(
        self, rank: int, message: Message, addressed: list[Addressed]
    ) -> Sequence[tuple[int, Instruction]]:
        if isinstance(message, Submit):
            known = self._known_as(rank, message.number)
            content = message.content and riding.checked(message.content, known.description)
            note = _Submission(message.number, content, message.ahead)
            event = Submitted(rank, known.description, note)
            return [(known.set_id, each) for each in self._tables[known.set_id].handle(event)]
        if isinstance(message, Define):
            self._define(rank, message)
        elif isinstance(message, Join):
            joined = HasJoined(rank, next(self._joins))
            return [(GLOBAL_SET, each) for each in self._tables[GLOBAL_SET].handle(joined)]
        elif isinstance(message, Leave):
            self._gone.add(rank)
            return [
                (set_id, each)
                for set_id, table in self._tables.items()
                if table.includes(rank)
                for each in table.handle(Left(rank))
            ]
        elif isinstance(message, Fail):
            addressed += self.lost(rank, f"could not go on: {message.why}")
        elif isinstance(message, Ask):
            if message.number == ANYTHING:
                is_wanted = any(table.wants(rank) for table in self._tables.values())
                addressed.append(Addressed(rank, Missing(ANYTHING, (rank,) * is_wanted)))
                return ()
            known = self._known_as(rank, message.number)
            missing = self._tables[known.set_id].missing(known.description.name, rank)
            addressed.append(Addressed(rank, Missing(message.number, missing)))
        return ()

    def _known_as(self, rank: int, number: int) -> _Known:
        known = self._known.get((rank, number))
        if known is None:
            raise ProtocolError(f"rank {rank} names {number}, which it has not described")
        return known

    def _define(self, rank: int, message: Define) -> None:
        if message.set_id not in self._tables:
            everybody = self._tables[GLOBAL_SET]
            if not message.ranks or not all(map(everybody.includes, message.ranks)):
                raise ProtocolError(f"a process set of ranks that there are not: {message.ranks}")
            table = self._tables[message.set_id] = Negotiation(message.ranks, self._names)
            for gone in self._gone.intersection(message.ranks):
                table.handle(Left(gone))
        description = self._contents.get(message.content)
        if description is None:
            if len(self._contents) >= 1 << 16:
                self._contents.clear()
            description = Description.decode(message.content.encode("utf-8", "replace"))
            self._contents[message.content] = description
        if not self._tables[message.set_id].includes(rank):
            raise ProtocolError(f"rank {rank} is not of the process set {message.set_id}")
        self._known[rank, message.number] = _Known(message.set_id, description, message.content)

    def _fusion_key(self, item: tuple[int, Perform]) -> Hashable | None:
        set_id, ready = item
        if len(ready.parts) < len(self._tables[set_id].ranks) or _went_ahead(ready):
            return None
        key = fusion_key(ready.description)
        return None if key is None else (set_id, key)

    def _orders(self, bucket: list[tuple[int, Perform]], *, is_alone: bool) -> list[Addressed]:
        set_id, first = bucket[0]
        ranks = self._tables[set_id].ranks
        is_plain = len(first.parts) == len(ranks) and first.description.kind not in SIZES_DIFFER
        if is_plain:
            if len(bucket) == 1 and fusion_key(first.description) is not None:
                return self._order_alone(set_id, first, is_alone=is_alone)
            return [
                Addressed(rank, Order(tuple(ready.parts[rank].note.number for _, ready in bucket)))
                for rank in ranks
            ]
        (ready,) = (ready for _, ready in bucket)
        described = pack_described(
            [
                self._known[rank, ready.parts[rank].note.number].content
                if rank in ready.parts
                else None
                for rank in ranks
            ]
        )
        return [
            Addressed(
                rank,
                Detailed(
                    ready.parts[rank].note.number if rank in ready.parts else -1, set_id, described
                ),
            )
            for rank in ranks
            if rank not in self._gone
        ]

    def _order_alone(self, set_id: int, ready: Perform, *, is_alone: bool) -> list[Addressed]:
        notes = [part.note for part in ready.parts.values()]
        sent = tuple(note.ahead for note in notes)
        is_likely = len(notes) <= MOST_RANKS and self._foresight.is_likely(
            (set_id, notes[0].number), sent, is_alone=is_alone
        )
        counted = sent if all(sent) else ()
        return [
            Addressed(rank, Order((part.note.number,), counted, is_likely))
            for rank, part in ready.parts.items()
        ]

    def _answers(self, set_id: int, instruction: Instruction) -> list[Addressed]:
        if isinstance(instruction, AllJoined):
            ranks = self._tables[set_id].ranks
            return [Addressed(rank, Joined(instruction.last)) for rank in ranks]
        if isinstance(instruction, Perform):
            contents = [part.note.content for part in instruction.parts.values()]
            set_size = len(self._tables[set_id].ranks)
            result = riding.reduced(instruction.description, contents, set_size)
            return [
                Addressed(rank, Done(part.note.number, result))
                for rank, part in instruction.parts.items()
            ]
        return [
            Addressed(rank, Refused(part.note.number, instruction.objection, instruction.text))
            for rank, part in instruction.parts.items()
            if rank not in self._gone
        ]


def _rides(ready: Perform) -> bool:
    """Returns whether the tensors of all are here."""
    return all(part.note.content for part in ready.parts.values())


def _went_ahead(ready: Perform) -> bool:
    """Returns whether all ranks have sent parts of it ahead."""
    return all(part.note.ahead for part in ready.parts.values())


def fusion_key(description: Description) -> Hashable | None:
    """Returns what operations that can be performed as one have in common; None where this one goes
    alone."""
    reduction = description.reduction
    if (
        description.kind is not Kind.ALLREDUCE
        or reduction is None
        or reduction.op is ReduceOp.ADASUM
        or len(set(description.dtypes)) != 1
    ):
        return None
    return description.dtypes[0], reduction


def size_of(description: Description) -> int:
    """Returns the bytes of an operation's tensors."""
    return sum(
        element_count(shape) * dtype_named(dtype).itemsize
        for shape, dtype in zip(description.shapes, description.dtypes, strict=True)
    )


def _size(item: tuple[int, Perform]) -> int:
    return size_of(item[1].description)
