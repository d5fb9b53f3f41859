"""Performing the orders of rank 0 on one rank, one after the other; it completes their handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.collectives.arithmetic import outputs_of, rows_gathered
from lockstitch.collectives.c10d.messages import unpack_described
from lockstitch.collectives.c10d.performing import (
    contribute_nothing,
    is_reducible,
    perform,
    perform_bucket,
    take_part_in_gather,
)
from lockstitch.collectives.c10d.riding import unpacked
from lockstitch.collectives.outcomes import value_of
from lockstitch.collectives.requests import Description, Kind
from lockstitch.devices.kinds import is_gpu
from lockstitch.devices.streams import SideStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstitch.collectives.c10d.group_operations import GroupOperations
    from lockstitch.collectives.c10d.messages import Detailed, Done
    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.pending_operations import PendingOperations
    from lockstitch.collectives.process_sets import ProcessSets
    from lockstitch.devices.streams import SideStreamOperation


class OrderPerformer:
    """Performs orders by the operations of process groups, in the one thread that performs; the one
    that hears rank 0 hands out the results that it has sent. Whoever submits an operation enters it
    in `under_way` before. `let_go` is called with the number of each that is taken out."""

    def __init__(
        self,
        groups: GroupOperations,
        sets: ProcessSets,
        pending: PendingOperations,
        let_go: Callable[[int], object],
    ) -> None:
        self._let_go = let_go
        self._groups = groups
        self._sets = sets
        self._pending = pending
        self.stream = SideStream(groups.device) if is_gpu(groups.device) else None
        """The stream on which operations of a GPU are performed; None on the CPU."""
        self.side_operations: dict[int, SideStreamOperation] = {}
        """How each operation on that stream is ordered among the streams of who submitted it."""
        self.under_way: dict[int, Handle[Any]] = {}
        """The operations that this rank has submitted, by number, until they are performed."""

    def take(self, number: int) -> Handle[Any]:
        """Takes the operation with this number out of those under way."""
        handle = self.under_way.pop(number)
        self._let_go(number)
        return handle

    def hand_out(self, message: Done) -> None:
        """Completes an operation whose results rank 0 has sent."""
        handle = self.take(message.number)
        self._pending.note_ready(handle)
        outputs = outputs_of(handle.request)
        results = unpacked(message.content, handle.cached.description)
        for out, result in zip(outputs, results, strict=True):
            out.copy_(result)
        self._pending.complete(handle, value_of(handle.request, outputs))

    def perform_together(self, numbers: Sequence[int], sent: Sequence[int] = ()) -> None:
        """Performs the operations with these numbers, as one where that is possible. Of a single
        one all ranks may have sent parts ahead: `sent`, see `GroupOperations.reduce`."""
        handles = [self.take(number) for number in numbers]
        for handle in handles:
            self._pending.note_ready(handle)
        request = handles[0].request
        process_set = self._sets[request.process_set]
        if is_reducible(handles[0].cached.description, self._groups):
            requests = [handle.request for handle in handles]
            self._let_begin(handles)
            results = perform_bucket(requests, self._groups, process_set, sent)
            self._let_end(handles)
            for handle, tensors in zip(handles, results, strict=True):
                self._pending.complete(handle, value_of(handle.request, tensors))
            return
        for handle in handles:
            self._perform_one(handle, [handle.cached.description] * process_set.size)

    def perform_detailed(self, message: Detailed) -> None:
        """Performs one operation whose sizes differ between ranks, or which some ranks have joined
        without; this rank may be one of these."""
        process_set = self._sets[message.set_id]
        described = [
            None if content is None else Description.decode(content.encode())
            for content in unpack_described(message.described)
        ]
        present = next(each for each in described if each is not None)
        if message.number == -1:
            if is_reducible(present, self._groups):
                contribute_nothing(present, self._groups, process_set)
            elif present.shapes:
                take_part_in_gather(described, self._groups, process_set)
            return
        handle = self.take(message.number)
        self._pending.note_ready(handle)
        if is_reducible(present, self._groups):
            self._let_begin([handle])
            (results,) = perform_bucket([handle.request], self._groups, process_set)
            self._let_end([handle])
            self._pending.complete(handle, value_of(handle.request, results))
        else:
            self._perform_one(handle, described)

    def _perform_one(self, handle: Handle[Any], described: list[Description | None]) -> None:
        process_set = self._sets[handle.request.process_set]
        me = process_set.position(self._pending.rank)
        self._let_begin([handle])
        results = perform(handle.request, described, self._groups, me, process_set)
        self._let_end([handle])
        if handle.request.kind is Kind.ALLGATHER:
            handle.rows = rows_gathered(described)
        self._pending.complete(handle, value_of(handle.request, results))

    def _let_begin(self, handles: list[Handle[Any]]) -> None:
        if self.stream is not None:
            for handle in handles:
                self.side_operations[handle.cached.number].begin()

    def _let_end(self, handles: list[Handle[Any]]) -> None:
        if self.stream is not None:
            for handle in handles:
                self.side_operations.pop(handle.cached.number).end()
