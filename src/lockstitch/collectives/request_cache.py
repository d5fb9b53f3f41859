"""What stays the same each time a name is submitted, kept: the request cache.

A training program submits the same names with the same shapes over and over. What follows from
these, that the request makes sense, its description for the other ranks, its number, is worked out
once and kept as a `CachedRequest`; each submission is only compared with it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

from lockstitch.collectives import checks
from lockstitch.collectives.requests import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.requests import Request

MOST_CACHED: Final = 1 << 15


class CachedRequest:
    """A request without its tensors."""

    __slots__ = (
        "description",
        "dtypes",
        "is_forgotten",
        "key",
        "kind",
        "likeness",
        "name",
        "note",
        "number",
        "quick",
        "shapes",
        "tensor_bytes",
    )

    def __init__(self, request: Request, number: int) -> None:
        self.name = request.name
        self.key = (request.process_set, request.name)
        self.kind = request.kind
        self.likeness = likeness_of(request)
        self.shapes = [tensor.shape for tensor in request.tensors]
        self.dtypes = [tensor.dtype for tensor in request.tensors]
        self.tensor_bytes = sum(tensor.nbytes for tensor in request.tensors)
        self.description = describe(request)
        self.number = number
        """Of all names that this rank knows, this one's."""
        self.note: Any = None
        """For the backend; None while it has not seen it."""
        self.quick: Any = None
        """A quicker way that the backend has found."""
        self.is_forgotten = False
        """Whether its number may stand for another one by now."""


class RequestCache:
    """The requests that one rank has submitted, one for each name. Callers hold a lock."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._known: dict[tuple[int, str], CachedRequest] = {}
        self._queued: defaultdict[Hashable, deque[CachedRequest]] = defaultdict(deque)
        """Those that are alike; before the one that was used last are only some that are in use."""
        self._numbers = itertools.count()
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._known)

    def of(
        self,
        request: Request,
        process_set: ProcessSet,
        is_in_flight: Callable[[tuple[int, str]], bool],
    ) -> CachedRequest:
        """Returns what is known of a request; raises `ValueError` where it makes no sense."""
        if request.queue:
            return self._of_queue(request, process_set, is_in_flight)
        key = (request.process_set, request.name)
        cached = self._known.get(key)
        if cached is not None and cached.likeness == likeness_of(request):
            return cached
        checks.check(request, process_set, self._rank)
        number = self._number(is_in_flight) if cached is None else cached.number
        self._known[key] = cached = CachedRequest(request, number)
        return cached

    def _of_queue(
        self,
        request: Request,
        process_set: ProcessSet,
        is_in_flight: Callable[[tuple[int, str]], bool],
    ) -> CachedRequest:
        """Several that are alike may be in flight; each has a number then, and a name of its own
        on this rank."""
        kind = (request.process_set, request.queue, likeness_of(request))
        alike = self._queued[kind]
        for _ in range(len(alike)):  # the first is free, or the one behind it, or hardly any is
            cached = alike[0]
            if not is_in_flight(cached.key):
                request.name = cached.name
                return cached
            alike.rotate(-1)
        checks.check(request, process_set, self._rank)
        number = self._number(is_in_flight)
        request.name = f"{request.queue} #{number}"
        cached = CachedRequest(request, number)
        self._known[cached.key] = cached
        self._queued[kind].append(cached)
        return cached

    def _number(self, is_in_flight: Callable[[tuple[int, str]], bool]) -> int:
        if len(self._known) >= MOST_CACHED:
            self._forget(is_in_flight)
        return self._free.pop() if self._free else next(self._numbers)

    def _forget(self, is_in_flight: Callable[[tuple[int, str]], bool]) -> None:
        """Names that are not in flight may be told anew when they come again."""
        for key in list(self._known):
            if not is_in_flight(key):
                forgotten = self._known.pop(key)
                forgotten.is_forgotten = True
                self._free.append(forgotten.number)
        self._queued.clear()  # those in flight are not used again, and forgotten the next time


def likeness_of(request: Request) -> Hashable:
    """What requests have in common that are the same but for their names and the values of their
    tensors: they need be described once only."""
    tensors = request.tensors
    if len(tensors) == 1:  # the usual case
        (tensor,) = tensors
        what: Hashable = (tensor.shape, tensor.dtype, tensor.layout)
    else:
        what = tuple((tensor.shape, tensor.dtype, tensor.layout) for tensor in tensors)
    return (
        request.kind,
        what,
        request.reduction,
        request.root,
        request.splits,
        request.ranks,
    )
