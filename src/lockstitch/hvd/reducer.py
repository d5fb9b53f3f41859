"""Gradients on their way from `backward` to `step`: when each is reduced, so that none is missed.

A parameter's gradient is submitted as soon as backward has accumulated it for the last time before
the step (the hook), so that reductions overlap with the rest of backward. `finish`, at the step,
submits what is still missing: zeros for parameters without a gradient on this rank, parameters that
were unfrozen or added meanwhile, a last accumulation that was cut short. Then it waits for all.

    no gradient ──hook──▶ accumulated (n of `passes`) ──nth hook──▶ submitted ──finish──▶ reduced
                                   └──────────────finish──────────────┘

Ranks need not have the same gradients, only the same parameters. Names tell them apart, and each
optimizer of a job has a number, so two may have parameters of one name.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives import AVERAGE, Reduction
from lockstitch.hvd.asynchronous import sparse_operation
from lockstitch.hvd.handles import Operation
from lockstitch.hvd.job import PROCESS, current_session
from lockstitch.hvd.process_sets import id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lockstitch.collectives import Session
    from lockstitch.hvd.compression import Compressor
    from lockstitch.hvd.process_sets import ProcessSet


@dataclass(frozen=True, slots=True)
class ReducerOptions:
    """How gradients are reduced."""

    compression: type[Compressor]
    process_set: ProcessSet
    reduction: Reduction = AVERAGE
    sparse_as_dense: bool = False


class GradientReducer:
    """See the module. One for each optimizer."""

    def __init__(
        self,
        options: ReducerOptions,
        names: Mapping[torch.Tensor, str],
        groups: Iterable[Sequence[torch.Tensor]],
        passes: int,
    ) -> None:
        session = current_session()
        # The process's own session may be another one after a new init; a test's stays.
        self._session = None if session is PROCESS.session else session
        self._options = options
        self._prefix = f"optimizer.{PROCESS.next_number(session)}"
        self._names = dict(names)
        self._group_of = {member: tuple(group) for group in groups for member in group}
        self._hooked: set[torch.Tensor] = set()
        self._was_sparse: set[torch.Tensor] = set()
        self._counts: dict[torch.Tensor, int] = {}
        self._submitted: set[torch.Tensor] = set()
        self._under_way: list[Operation[None]] = []
        self.passes = passes
        self.is_paused = False
        """Whether gradients are only accumulated for now."""
        self.is_finished = False
        """Whether there is nothing new since the last `finish`."""

    @property
    def is_needed(self) -> bool:
        """Whether there is another rank to reduce with."""
        process_set = self._options.process_set
        return process_set.included() and process_set.size() > 1

    @property
    def is_under_way(self) -> bool:
        """Whether some gradients are being reduced."""
        return bool(self._under_way)

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Sees to it that gradients of these are noticed; harmless when repeated."""
        me = weakref.ref(self)

        def notice(parameter: torch.Tensor) -> None:
            reducer = me()
            if reducer is not None:
                reducer.accumulated(parameter)

        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._hooked:
                parameter.register_post_accumulate_grad_hook(notice)  # type: ignore[no-untyped-call]
                self._hooked.add(parameter)
            if parameter not in self._names:
                self._names[parameter] = f"noname.{len(self._names)}"

    def accumulated(self, parameter: torch.Tensor) -> None:
        """Backward has added to a gradient."""
        self.is_finished = False
        if self.is_paused:
            return
        count = self._counts[parameter] = self._counts.get(parameter, 0) + 1
        if count > self.passes:
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was computed {count} times since the "
                f"last step, with backward_passes_per_step={self.passes}. Raise that number to "
                "accumulate gradients, or use no_sync() for all backward passes but the last"
            )
        if count == self.passes and self.is_needed:
            unit = self._unit(parameter)
            if all(self._counts.get(member, 0) == self.passes for member in unit):
                self._submit(unit)

    def finish(self, parameters: Sequence[torch.Tensor]) -> None:
        """Submits what is missing and waits for everything. Raises `HorovodInternalError`; what is
        under way then is forgotten."""
        self.watch(parameters)
        try:
            if self.is_needed:
                for parameter in parameters:
                    is_trained = parameter.requires_grad or parameter.grad is not None
                    if is_trained and parameter not in self._submitted:
                        self._submit(self._unit(parameter))
            for operation in self._under_way:
                operation.wait()
        finally:
            self.reset()
        self.is_finished = True

    def reset(self) -> None:
        """Counts begin anew."""
        self._counts.clear()
        self._submitted.clear()
        self._under_way.clear()

    # ------------------------------------------------------------ inside

    def _unit(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """What is reduced together with a parameter, itself included."""
        group = self._group_of.get(parameter, (parameter,))
        return [each for each in group if each.requires_grad or each is parameter]

    def _submit(self, unit: list[torch.Tensor]) -> None:
        session = self._session or current_session()
        self._submitted.update(unit)
        for parameter in unit:
            self._fill(parameter)
        sparse = [each for each in unit if each in self._was_sparse]
        dense = [each for each in unit if each not in self._was_sparse]
        self._under_way += [self._begin_sparse(session, each) for each in sparse]
        if dense:
            self._under_way.append(self._begin(session, dense))

    def _fill(self, parameter: torch.Tensor) -> None:
        """Gives the parameter a gradient if it has none, as sparse as it was last time."""
        if parameter.grad is None:
            layout = torch.sparse_coo if parameter in self._was_sparse else torch.strided
            parameter.grad = torch.zeros_like(parameter, layout=layout)
        elif parameter.grad.is_sparse:
            if self._options.sparse_as_dense:
                parameter.grad = parameter.grad.to_dense()
            else:
                self._was_sparse.add(parameter)

    def _begin(self, session: Session, parameters: list[torch.Tensor]) -> Operation[None]:
        compression = self._options.compression
        sent, notes = [], []
        for parameter in parameters:
            assert parameter.grad is not None
            tensor, note = compression.compress(parameter.grad.detach())
            sent.append(tensor)
            notes.append(note)
        reduction, set_id = self._options.reduction, id_of(self._options.process_set)
        name = f"{self._prefix}.{self._names[parameters[0]]}"
        handle: Any
        if len(sent) == 1:
            handle = session.allreduce(
                sent[0], reduction, name=name, process_set=set_id, output=sent[0]
            )
        else:
            handle = session.grouped_allreduce(
                sent, reduction, name=name, process_set=set_id, outputs=sent
            )

        def store(_reduced: object) -> None:
            for parameter, tensor, note in zip(parameters, sent, notes, strict=True):
                result = compression.decompress(tensor, note)
                gradient = parameter.grad
                if gradient is not None and result.data_ptr() != gradient.data_ptr():
                    gradient.detach().copy_(result)

        return Operation(session, handle, store)

    def _begin_sparse(self, session: Session, parameter: torch.Tensor) -> Operation[None]:
        assert parameter.grad is not None
        name = f"{self._prefix}.{self._names[parameter]}"
        options = self._options
        operation = sparse_operation(
            session, parameter.grad, name, options.reduction.op, options.process_set
        )

        def store(reduced: torch.Tensor) -> None:
            parameter.grad = reduced

        return operation.then(store)
