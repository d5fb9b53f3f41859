"""What stays the same each time a name is submitted, kept: the request cache.

A training program submits the same names with the same shapes over and over. What follows from
these, that the request makes sense, its description for the other ranks, its number, is worked out
once and kept as a `CachedRequest`; each submission is only compared with it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.collectives import checks
from lockstitch.collectives.requests import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from lockstitch.collectives.process_sets import ProcessSet
    from lockstitch.collectives.requests import Request

MOST_CACHED: Final = 1 << 15


class CachedRequest:
    """A request without its tensors."""

    __slots__ = (
        "description",
        "dtypes",
        "kind",
        "name",
        "note",
        "number",
        "ranks",
        "reduction",
        "root",
        "shapes",
        "splits",
        "tensor_bytes",
    )

    def __init__(self, request: Request, number: int) -> None:
        self.name = request.name
        self.kind = request.kind
        self.reduction = request.reduction
        self.root = request.root
        self.splits = request.splits
        self.ranks = request.ranks
        self.shapes = [tensor.shape for tensor in request.tensors]
        self.dtypes = [tensor.dtype for tensor in request.tensors]
        self.tensor_bytes = sum(tensor.nbytes for tensor in request.tensors)
        self.description = describe(request)
        self.number = number
        """Of all names that this rank knows, this one's."""
        self.note: Any = None
        """For the backend; None while it has not seen it."""

    def fits(self, request: Request) -> bool:
        """Returns whether the request is the same as this one but for the values of its tensors."""
        if (
            self.kind is not request.kind
            or (self.reduction is not request.reduction and self.reduction != request.reduction)
            or self.root != request.root
            or self.splits != request.splits
            or self.ranks != request.ranks
        ):
            return False
        if len(request.tensors) == len(self.shapes) == 1:  # the usual case
            (tensor,) = request.tensors
            return (
                tensor.shape == self.shapes[0]
                and tensor.dtype is self.dtypes[0]
                and tensor.layout is torch.strided
            )
        return self._fit(request.tensors)

    def _fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        if len(tensors) != len(self.shapes):
            return False
        return all(
            tensor.shape == shape and tensor.dtype is dtype and tensor.layout is torch.strided
            for tensor, shape, dtype in zip(tensors, self.shapes, self.dtypes, strict=True)
        )


class RequestCache:
    """The requests that one rank has submitted, one for each name. Callers hold a lock."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._known: dict[tuple[int, str], CachedRequest] = {}
        self._queued: defaultdict[Hashable, deque[CachedRequest]] = defaultdict(deque)
        """Those that are alike, the one that was used last behind all others."""
        self._latest: dict[tuple[int, str], CachedRequest] = {}
        """The latest of each queue."""
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
        if cached is not None and cached.fits(request):
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
        queue = (request.process_set, request.queue)
        cached = self._latest.get(queue)
        if (
            cached is not None
            and cached.fits(request)
            and not is_in_flight((request.process_set, cached.name))
        ):
            request.name = cached.name
            return cached
        alike = self._queued[_likeness(request)]
        for _ in range(len(alike)):  # the first is free, or hardly any is
            cached = alike[0]
            alike.rotate(-1)
            if not is_in_flight((request.process_set, cached.name)):
                request.name = cached.name
                self._latest[queue] = cached
                return cached
        checks.check(request, process_set, self._rank)
        number = self._number(is_in_flight)
        request.name = f"{request.queue} #{number}"
        cached = CachedRequest(request, number)
        self._known[request.process_set, request.name] = cached
        self._queued[_likeness(request)].append(cached)
        self._latest[queue] = cached
        return cached

    def _number(self, is_in_flight: Callable[[tuple[int, str]], bool]) -> int:
        if len(self._known) >= MOST_CACHED:
            self._forget(is_in_flight)
        return self._free.pop() if self._free else next(self._numbers)

    def _forget(self, is_in_flight: Callable[[tuple[int, str]], bool]) -> None:
        """Names that are not in flight may be told anew when they come again."""
        for key in list(self._known):
            if not is_in_flight(key):
                self._free.append(self._known.pop(key).number)
        self._latest.clear()
        self._queued.clear()  # those in flight are not used again, and forgotten the next time


def _likeness(request: Request) -> Hashable:
    """What requests of one queue have in common that need be described once only."""
    tensors = request.tensors
    if len(tensors) == 1:
        shapes: Hashable = tensors[0].shape
        dtypes: Hashable = tensors[0].dtype
        layouts: Hashable = tensors[0].layout
    else:
        shapes = tuple(tensor.shape for tensor in tensors)
        dtypes = tuple(tensor.dtype for tensor in tensors)
        layouts = tuple(tensor.layout for tensor in tensors)
    return (
        request.process_set,
        request.queue,
        request.kind,
        shapes,
        dtypes,
        layouts,
        request.reduction,
        request.root,
        request.splits,
    )
