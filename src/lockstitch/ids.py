"""Identifiers: who a worker is, and how anything it creates is named all over the job.

Every identifier names its creator by *rank and generation*. A generation counts how often a rank
has been (re)started, so an identifier of an earlier life never meets one of a later life, although
counters start again at zero. Ids are values: hashable, ordered, printable, without any I/O.
"""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# A context id is one integer, because programs keep it, print it and send it as such:
#   rank · 2^48  +  generation · 2^36  +  counter
_RANK_SHIFT = 48
_GENERATION_SHIFT = 36
MAX_GENERATION = (1 << (_RANK_SHIFT - _GENERATION_SHIFT)) - 1
_COUNTER_MASK = (1 << _GENERATION_SHIFT) - 1

_NAME = re.compile("[A-Za-z0-9_:-]*")
_NAME_LIMIT = 128
_NUMBER = re.compile(r"\d+")
_MOST_NAMES = 16


class WorkerId(NamedTuple):
    """One life of one rank."""

    rank: int
    generation: int

    def __str__(self) -> str:
        return f"rank {self.rank} (generation {self.generation})"


_APPLICANTS_FROM = 1 << 30
_LAST_RANK = (1 << 31) - 1
ANYBODY = WorkerId(_LAST_RANK, 0)
"""Whoever listens at an address: for callers that know no more of it."""


def applicant_id(number: int) -> WorkerId:
    """The identity under which a worker asks to come in, before it has a rank; `number` is any."""
    return WorkerId(_APPLICANTS_FROM + number % (_LAST_RANK - _APPLICANTS_FROM), 0)


def is_applicant(worker: WorkerId) -> bool:
    """Whether that is such an identity."""
    return worker.rank >= _APPLICANTS_FROM


class GlobalId(NamedTuple):
    """The name of a reference, a fork, a stitch or a backward pass, unique in the whole job."""

    rank: int
    generation: int
    counter: int

    @property
    def worker(self) -> WorkerId:
        """The worker that created the id."""
        return WorkerId(self.rank, self.generation)

    def __str__(self) -> str:
        return f"GloballyUniqueId(created_on={self.rank}, local_id={self.counter})"


class IdSource:
    """Hands out the `GlobalId`s of one worker, from `start` on; safe to call from any thread."""

    def __init__(self, worker: WorkerId, start: int = 0) -> None:
        self._rank, self._generation = worker
        self._counter = itertools.count(start)

    def __call__(self) -> GlobalId:
        # next() on itertools.count is one C call, hence atomic.
        return GlobalId(self._rank, self._generation, next(self._counter))


def context_id(worker: WorkerId, counter: int) -> int:
    """Packs a context's name into the integer that programs see."""
    return (
        (worker.rank << _RANK_SHIFT)
        | (worker.generation << _GENERATION_SHIFT)
        | (counter & _COUNTER_MASK)
    )


def context_owner(identifier: int) -> WorkerId:
    """The worker that opened the context `identifier`."""
    return WorkerId(identifier >> _RANK_SHIFT, (identifier >> _GENERATION_SHIFT) & MAX_GENERATION)


def greatest_context_id(rank: int) -> int:
    """The last context id that `rank` could ever hand out."""
    return (rank << _RANK_SHIFT) + (1 << _RANK_SHIFT) - 1


@dataclass(frozen=True, slots=True, repr=False)
class WorkerInfo:
    """A worker's name and rank (`id`), as `get_worker_info` returns it.

    `generation` tells two lives of the same rank apart; it takes no part in equality, since
    programs compare infos that they built themselves. Raises `RuntimeError` for a name that is
    empty, has 128 characters or more, or others than letters, digits, `_`, `:` and `-`.
    """

    name: str
    id: int
    generation: int = field(default=0, compare=False)
    worker: WorkerId = field(init=False, compare=False)
    """The identity of this life of the worker."""

    def __post_init__(self) -> None:
        if not self.name:
            raise RuntimeError("Worker name must be non-empty")
        if not _NAME.fullmatch(self.name):
            raise RuntimeError(f"Worker name must match {_NAME.pattern}, but got {self.name!r}")
        if len(self.name) >= _NAME_LIMIT:
            raise RuntimeError(
                f"Worker name must be shorter than {_NAME_LIMIT} characters, but got {self.name!r}"
            )
        object.__setattr__(self, "worker", WorkerId(self.id, self.generation))

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, name={self.name})"


def names_like(key: str | int, names: Sequence[str]) -> str:
    """For who asked for a worker `key` that is not among `names`: the names, or the first of many,
    and a guess. (That is no name which differs in its number only: nobody mistypes that.)"""
    shown = ", ".join(map(repr, names[:_MOST_NAMES]))
    more = f" and {len(names) - _MOST_NAMES} others" if len(names) > _MOST_NAMES else ""
    alike: list[str] = []
    if isinstance(key, str):
        others = [name for name in names if _NUMBER.sub("", name) != _NUMBER.sub("", key)]
        alike = difflib.get_close_matches(key, others)
    guess = f"; did you mean {' or '.join(map(repr, alike))}?" if alike else ""
    return f"{shown}{more}{guess}"
