"""Gradients on their way from `backward` to `step`: when each is reduced, so that none is missed.

A parameter's gradient is submitted as soon as backward has accumulated it for the last time before
the step (the hook), so that reductions overlap with the rest of backward. The end of backward
submits zeros for parameters that got no gradient on this rank, and waits: what the program does
with gradients after `backward`, it does with reduced ones.

    no gradient ──hook──▶ accumulated (n of `passes`) ──nth hook──▶ submitted ──end of──▶ reduced
                                   └──────────finish, at the step──────────┘   backward

What is still missing at the step is submitted there: a last accumulation that was cut short,
parameters that were unfrozen or added meanwhile. Ranks need not have the same gradients, only the
same parameters. Names tell them apart, and each optimizer of a job has a number, so two may have
parameters of one name.

Where a step takes several backward passes, each through some of the parameters only, zeros would
come too early. The first time a gradient follows the zeros, everything is reduced once more: the
average of what was reduced already, the same on all ranks, plus what is new is right. From then on
this optimizer waits at the end of the pass with which its gradients are complete, or at the step.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

import torch
from torch.autograd import Variable

from lockstitch.collectives import ReduceOp
from lockstitch.collectives.fusion import ALIGNMENT, buckets
from lockstitch.hvd.compression import PowerSGD
from lockstitch.hvd.exchange import Exchange, gradient_of
from lockstitch.hvd.job import PROCESS, current_session
from lockstitch.hvd.low_rank import LowRankExchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lockstitch.collectives import Session
    from lockstitch.hvd.exchange import ReducerOptions

_SMALL_BYTES: Final = 1 << 18
_BUCKET_BYTES: Final = 1 << 20


class GradientReducer:
    """See the module. One for each optimizer."""

    def __init__(
        self,
        options: ReducerOptions,
        names: Mapping[torch.Tensor, str],
        groups: Iterable[Sequence[torch.Tensor]] | None,
        passes: int,
    ) -> None:
        """Without `groups`, neighbours that are small are reduced together (`buckets_of`)."""
        session = current_session()
        # The process's own session may be another one after a new init; a test's stays.
        self._session = None if session is PROCESS.session else session
        self._options = options
        self._prefix = f"optimizer.{PROCESS.next_number(session)}"
        self._names = dict(names)
        chosen = buckets_of(list(names)) if groups is None else groups
        self._groups = [tuple(group) for group in chosen]
        self._group_of = {each: number for number, g in enumerate(self._groups) for each in g}
        self._parameters: tuple[torch.Tensor, ...] = ()
        self._hooked: set[torch.Tensor] = set()
        self._was_sparse: set[torch.Tensor] = set()
        self._counts: dict[torch.Tensor, int] = {}
        self._counted: dict[torch.Tensor, weakref.ref[torch.Tensor]] = {}
        """The gradient that was counted: another one begins anew."""
        self._submitted: set[torch.Tensor] = set()
        self._filled: set[torch.Tensor] = set()
        self._under_way: list[Exchange] = []
        self._replaced: dict[torch.Tensor, torch.Tensor] = {}
        """See `Exchange.replaced`. Kept until the next one comes: freed all at once, memory goes
        back to the system, and the first touch of fresh pages costs as much as the reduction."""
        self._wave = 0
        self._is_needed: bool | None = None
        """As long as a step lasts; the job may be another one then."""
        self._complete: dict[int, int] = {}
        """Of each group, by its number, how many members have all that they get in this step."""
        self._is_at_end = False
        """Whether something will be done at the end of this backward pass."""
        self._fills_early = options.reduction.op is ReduceOp.AVERAGE
        self._waits_early = True
        self.passes = passes
        self.is_paused = False
        """Whether gradients are only accumulated for now."""
        self.is_settled = False
        """Whether there is nothing new since everything was reduced."""
        self.without_gradient: list[str] = []
        """The names of the parameters that got no gradient on this rank before the last step."""

    @property
    def is_needed(self) -> bool:
        """Whether there is another rank to reduce with."""
        if self._is_needed is None:
            process_set = self._options.process_set
            self._is_needed = process_set.included() and process_set.size() > 1
        return self._is_needed

    @property
    def is_under_way(self) -> bool:
        """Whether some gradients are being reduced."""
        return bool(self._under_way)

    def is_finished(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether all gradients of these are reduced."""
        return self.is_settled and not self._missing(parameters)

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Sees to it that gradients of these are noticed; harmless when repeated."""
        me = weakref.ref(self)

        def notice(parameter: torch.Tensor) -> None:
            reducer = me()
            if reducer is not None:
                reducer.accumulated(parameter)

        self._parameters = tuple(parameters)
        for parameter in self._parameters:
            if parameter.requires_grad and parameter not in self._hooked:
                parameter.register_post_accumulate_grad_hook(notice)  # type: ignore[no-untyped-call]
                self._hooked.add(parameter)
            if parameter not in self._names:
                self._names[parameter] = f"noname.{len(self._names)}"

    def accumulated(self, parameter: torch.Tensor) -> None:
        """Backward has added to a gradient."""
        if self.is_settled:
            self._begin_wave()
        if parameter in self._filled:
            self._fills_early = False
        if self.is_paused:
            return
        count = self._count(parameter)
        if count > self.passes:
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was computed {count} times since the "
                f"last step, with backward_passes_per_step={self.passes}. Raise that number to "
                "accumulate gradients, or use no_sync() for all backward passes but the last"
            )
        if count == self.passes and self.is_needed:
            if self._completes_its_group(parameter):
                self._submit(self._unit(parameter))
            if not self._is_at_end:
                self._is_at_end = True
                Variable._execution_engine.queue_callback(self._end_backward)

    def finish(self, parameters: Sequence[torch.Tensor]) -> None:
        """Submits what is missing and waits for everything. Raises `HorovodInternalError`; what is
        under way then is forgotten. Raises `RuntimeError` where the program has changed a gradient
        while it was being reduced."""
        self.watch(parameters)
        early = list(self._under_way)
        disturbed = [each for each in early if each.is_disturbed()]
        try:
            if self.is_needed:
                self._submit_missing()
            for exchange in self._under_way:
                exchange.proceed()
            self._wait_for_all()
        finally:
            self._under_way.clear()
            self._counts.clear()
            self._complete.clear()
            self._is_needed = None
            self._is_at_end = False
        self.is_settled = True
        if disturbed:
            raise RuntimeError(self._why_disturbed(disturbed))

    def reset(self) -> None:
        """A new step begins."""
        self._is_needed = None
        self._counts.clear()
        self._complete.clear()
        self._counted.clear()
        self._submitted.clear()
        self._filled.clear()
        self._under_way.clear()
        self._wave = 0
        self.is_settled = False
        self._is_at_end = False

    # ------------------------------------------------------------ inside

    def _begin_wave(self) -> None:
        """Gradients change after they were reduced."""
        self.is_settled = False
        self._wave += bool(self._submitted)
        self._submitted.clear()
        self._complete.clear()

    def _count(self, parameter: torch.Tensor) -> int:
        """How often this gradient was added to; one that replaces another begins anew."""
        gradient = parameter.grad
        assert gradient is not None
        known = self._counted.get(parameter)
        if known is None or known() is not gradient:
            self._counted[parameter] = weakref.ref(gradient)
            if parameter not in self._submitted:
                self._counts.pop(parameter, None)
        count = self._counts[parameter] = self._counts.get(parameter, 0) + 1
        return count

    def _end_backward(self) -> None:
        """The end of a pass with which at least one gradient was complete."""
        if not self._is_at_end:  # it was finished meanwhile
            return
        self._is_at_end = False
        missing = self._missing(self._parameters)
        has_begun = any(self._counts.get(each) for each in missing)
        is_complete = not missing or self._wave or (self._fills_early and not has_begun)
        if not self._waits_early or not is_complete:
            return
        try:
            self._submit_missing()
            self._waits_early = self._wait_for_all(unless_wanted=True)
        except BaseException:
            self.reset()
            raise
        self.is_settled = self._waits_early

    def _wait_for_all(self, *, unless_wanted: bool = False) -> bool:
        """Until nothing is under way; whether that is so."""
        while self._under_way:
            exchange = self._under_way[0]
            if unless_wanted and not exchange.wait_unless_wanted():
                return False
            exchange.wait()
            del self._under_way[0]
            if exchange.replaced is not None:
                self._replaced[exchange.parameters[0]] = exchange.replaced
            for parameter in exchange.parameters:  # it may be another tensor now
                self._counted[parameter] = weakref.ref(gradient_of(parameter))
        return True

    def _missing(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """What has to be submitted before the step."""
        if not self.is_needed:
            return []
        return [
            each
            for each in parameters
            if (each.requires_grad or each.grad is not None) and each not in self._submitted
        ]

    def _submit_missing(self) -> None:
        missing = self._missing(self._parameters)
        if not self._wave:
            self._filled = {each for each in missing if each.grad is None}
            self.without_gradient = [self._names[each] for each in missing if each.grad is None]
        for parameter in missing:
            if parameter not in self._submitted:
                self._submit(self._unit(parameter))

    def _completes_its_group(self, parameter: torch.Tensor) -> bool:
        number = self._group_of.get(parameter)
        if number is None:
            return True
        done = self._complete[number] = self._complete.get(number, 0) + 1
        group = self._groups[number]
        return done == len(group) or done == sum(each.requires_grad for each in group)

    def _unit(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """What is reduced together with a parameter, itself included."""
        number = self._group_of.get(parameter)
        group = (parameter,) if number is None else self._groups[number]
        return [each for each in group if each.requires_grad or each is parameter]

    def _submit(self, unit: list[torch.Tensor]) -> None:
        session = self._session or current_session()
        self._submitted.update(unit)
        for parameter in unit:
            self._fill(parameter)
        compression = self._options.compression
        alone = [each for each in unit if each in self._was_sparse]
        if isinstance(compression, PowerSGD):
            alone += [each for each in unit if each not in alone and compression.compresses(each)]
        together = [each for each in unit if each not in alone]
        for parameters in (*([each] for each in alone), together):
            if parameters:
                self._under_way.append(self._exchange(session, parameters))

    def _exchange(self, session: Session, parameters: list[torch.Tensor]) -> Exchange:
        options = self._options
        name = f"{self._prefix}.{self._names[parameters[0]]}"
        if self._wave:
            name += f".again.{self._wave}"
        is_matrix = isinstance(options.compression, PowerSGD) and options.compression.compresses(
            parameters[0]
        )
        if is_matrix and parameters[0] not in self._was_sparse:
            return LowRankExchange(session, options, name, parameters[0])
        return Exchange(session, options, name, parameters)

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

    def _why_disturbed(self, exchanges: Iterable[Exchange]) -> str:
        first = next(each for exchange in exchanges for each in exchange.parameters)
        return (
            f"the gradient of {self._names[first]!r} was changed while it was being reduced, so "
            "this step is wrong. Backward could not wait for it, because other ranks came to "
            "another operation first, or because it takes several passes through different "
            "parameters: call synchronize() before you clip or unscale gradients"
        )


def buckets_of(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Small parameters of one dtype and device that follow each other, put together up to a size at
    which their reduction takes one phase; from the last one, of which backward knows first."""
    joined: list[list[torch.Tensor]] = buckets(
        [each for each in reversed(parameters) if each.nbytes <= _SMALL_BYTES],
        lambda each: (each.dtype, each.device),
        lambda each: each.nbytes + ALIGNMENT,
        _BUCKET_BYTES,
    )
    return joined
