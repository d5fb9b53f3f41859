"""Small reductions and broadcasts that a program waits for at once, and has done before: see
`Repeated`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lockstitch.c10d.flight_recorder import RECORDER
from lockstitch.c10d.futures import queue_of_callback
from lockstitch.c10d.outputs import Outputs, memory_of
from lockstitch.c10d.works import NO_TIMEOUT, SessionWork
from lockstitch.collectives import Kind
from lockstitch.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Hashable

    import torch

    from lockstitch.c10d.flight_recorder import Entry, Repetition
    from lockstitch.c10d.membership import Membership
    from lockstitch.collectives import Handle, Reduction, Request, Session
    from lockstitch.collectives.repeated import Repeated

    Known = dict[Hashable, tuple[Repeated, Entry]]
    """Operations that came before, by what those like them have in common with them."""

# What is larger takes longer than the steps that are saved.
_MOST_BYTES: Final = 1 << 16
_MOST_KNOWN: Final = 1 << 8


class Repetitions:
    """Those of one group."""

    def __init__(self, group: Membership) -> None:
        self._group = group
        self._known: Known = {}

    def perform(self, tensor: torch.Tensor, what: Reduction | int, opts: Any) -> bool:
        """Reduces the tensor, or broadcasts it from a rank, if that is one of them; whether it was.
        Raises the errors of any other operation."""
        known = self._known.get((tensor.shape, tensor.dtype, what))
        if known is None or opts.timeout > NO_TIMEOUT or queue_of_callback():
            return False
        repeated, like = known
        handle = repeated.next(memory_of(tensor))
        if handle is None:
            return False
        repetition: Repetition | None = None
        try:
            if not repeated.begin(handle):
                return False
            repetition = self._group.repeated(like, handle.submitted_at)
            repeated.perform(handle)
        except BaseException as error:
            repeated.withdraw(handle, error)
            if repetition is not None and isinstance(error, CollectiveError):
                entry = RECORDER.as_entry(repetition)  # the work explains it
                SessionWork(self._group, handle, entry, [tensor], Outputs()).finish()
            raise
        repeated.keep(handle)
        return True

    def learn(self, handle: Handle[Any], entry: Entry) -> None:
        """Takes note of an operation that was waited for at once, and is done."""
        request = handle.request
        if _can_be_one(request):
            tensor = request.tensors[0]
            kind = (tensor.shape, tensor.dtype, request.reduction or request.root)
            learn(self._known, kind, self._group.session, handle, entry, most=_MOST_KNOWN)


def learn(
    known: Known,
    kind: Hashable,
    session: Session,
    handle: Handle[Any],
    entry: Entry,
    *,
    most: int,
) -> None:
    """Takes note of an operation for others of its kind, if they can be begun by a `Repeated`, and
    none is noted that can. Of more than `most` kinds all are forgotten."""
    before = known.get(kind)
    if (
        (before is None or before[0].is_forgotten)
        and handle.cached.tensor_bytes <= _MOST_BYTES
        and handle.route is None
    ):
        if len(known) >= most:
            known.clear()
        known[kind] = session.repeated(handle), entry


def _can_be_one(request: Request) -> bool:
    is_of_kind = request.kind is Kind.ALLREDUCE or request.kind is Kind.BROADCAST
    return is_of_kind and not request.is_group and request.outputs is request.tensors
