"""The lanes of a process set: where each rank puts its small tensors, those of SHORTs (see `log`).

The word says in which of its places the tensor of a rank lies. There are more of them for what is
quite small, but the same few are used again and again, which stay in the caches, unless many
operations wait for others.

A place is used again when all ranks have *finished* what lay there, its own too, which may be the
last to make its result. Each says so in a word for each writer: how many of its SHORTs, from the
first on, it does not read any more. Who takes the shortcut finishes them one after the other; in
the table some may wait for longer than later ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstitch.collectives.shared_memory.operations import NOWHERE
from lockstitch.collectives.shared_memory.segment import (
    RESULTS_BEGIN,
    SHORT_PLACES,
    SMALL_PLACES,
)
from lockstitch.fences import STORES_ARE_ORDERED, Fence

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.operations import Part
    from lockstitch.collectives.shared_memory.segment import Segment

Known = tuple["Definition", list["torch.Tensor | None"], list["torch.Tensor | None"]]
"""What a word stands for, and the tensors, and results, in those places that have been asked for.
"""
_MOST_KNOWN: Final = 1 << 8
LANE_MASK: Final = 63
"""Of the argument of a SHORT, what says in which place its tensor lies."""


class Lane:
    """The lane of one rank, as this one reads it (or writes it, if it is its own)."""

    def __init__(self, segment: Segment, rank: int, begin: int, finished: memoryview) -> None:
        self.taken = 0
        """How many SHORTs of the rank have been taken from its log; of this one: were said."""
        self.finished = finished
        """A word for each rank of the set, in which it says how many it has finished."""
        self._segment = segment
        self._rank = rank
        self._begin = begin
        self._known: dict[Definition, Known] = {}
        self._under_way: dict[int, None] = {}
        """Those that are in the table and not finished."""
        self._fence = Fence()

    def known(self, definition: Definition) -> Known:
        """What is known of that definition; filled by `view` and `result`."""
        known = self._known.get(definition)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            count = definition.lane_places
            known = self._known[definition] = definition, [None] * count, [None] * count
        return known

    def place(self, definition: Definition, number: int) -> int:
        """Where the place of that number is, in bytes from the segment's beginning; `NOWHERE` where
        the rank gives nothing."""
        if not definition.is_given_by(self._rank):
            return NOWHERE
        return self._begin + definition.lane_begin + number * definition.lane_stride

    def view(self, definition: Definition, number: int) -> torch.Tensor | None:
        """What lies there; None where the rank gives nothing."""
        views = self.known(definition)[1]
        view = views[number]
        if view is None:
            place = self.place(definition, number)
            if place != NOWHERE:
                view = views[number] = definition.view(self._segment, place)
        return view

    def result(self, definition: Definition, number: int) -> torch.Tensor:
        """Where the rank may leave the result of the operation whose tensor lies there."""
        results = self.known(definition)[2]
        result = results[number]
        if result is None:
            place = self.place(definition, number) + RESULTS_BEGIN
            result = results[number] = definition.view(self._segment, place)
        return result

    def address(self, definition: Definition) -> int:
        """Where the first place is, in this process; that for a result is `RESULTS_BEGIN` behind
        each, and the next one `lane_stride`."""
        return self._segment.address + self._begin + definition.lane_begin

    def take(self) -> int:
        """Takes the next SHORT of the rank into the table; returns its number."""
        serial = self.taken
        self._under_way[serial] = None
        self.taken = serial + 1
        return serial

    def hold(self, serial: int) -> None:
        """That SHORT of this rank itself is in the table from now on."""
        self._under_way[serial] = None

    def finish(self, serial: int, me: int) -> None:
        """This rank, at position `me`, does not read any more what the SHORT brought."""
        self._under_way.pop(serial, None)
        if not STORES_ARE_ORDERED:
            self._fence()
        self.finished[me] = next(iter(self._under_way), self.taken)


class Lanes:
    """All of them. Callers hold the lock of `OpenSets`."""

    def __init__(self, process_set: ProcessSet, rank: int, segment: Segment) -> None:
        self.position = process_set.position(rank)
        """Of this rank in the set."""
        self.of_rank = {
            each: Lane(
                segment,
                each,
                segment.lane(process_set.id, index),
                segment.finished(process_set.id, index, process_set.size),
            )
            for index, each in enumerate(process_set.ranks)
        }
        self.own = self.of_rank[rank]
        self.rank = rank
        """This one."""
        self.results = segment.results(process_set.id, process_set.size)
        """A word for each rank: for which of its SHORTs, from 1, there is a result in its lane."""
        self._users = {count: [0] * count for count in (SMALL_PLACES, SHORT_PLACES)}
        """For each place of either size, how many SHORTs there were when it was last used."""
        self._finished = 0
        """So many of this rank's all have finished, at least; it does so itself, too."""

    def free_place(self, definition: Definition) -> int:
        """The number of a free place for another tensor of this rank; -1 where there is none."""
        users = self._users[definition.lane_places]
        hot = self.own.taken % SHORT_PLACES
        if users[hot] <= self._finished:
            return hot
        finished = self._finished = min(self.own.finished)
        if users[hot] <= finished:
            return hot
        for place in range(SHORT_PLACES, len(users)):
            if users[place] <= finished:
                return place
        return -1

    def use(self, definition: Definition, place: int) -> int:
        """The others have been told of another SHORT of this rank, in that place; returns its
        number among all."""
        serial = self.own.taken
        self.own.taken = self._users[definition.lane_places][place] = serial + 1
        return serial

    def finish(self, parts: Iterable[Part]) -> None:
        """This rank reads nothing any more of an operation of the table with these parts."""
        for part in parts:
            if part.serial >= 0:
                self.of_rank[part.rank].finish(part.serial, self.position)
