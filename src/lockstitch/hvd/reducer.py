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
from typing import TYPE_CHECKING

import torch

from lockstitch.collectives import ReduceOp
from lockstitch.hvd.bucket import Bucket, BucketExchange, fits_into_bucket
from lockstitch.hvd.compression import PowerSGD
from lockstitch.hvd.exchange import Exchange, gradient_of, sparse_zeros
from lockstitch.hvd.groups import Groups, ParameterState, buckets_of
from lockstitch.hvd.job import PROCESS, current_session
from lockstitch.hvd.low_rank import LowRankExchange
from lockstitch.hvd.process_sets import size_of
from lockstitch.runtime.freed_memory import MOST_KEPT_BLOCK_BYTES, keep_freed_memory
from lockstitch.torch_internals.autograd import queue_callback
from lockstitch.torch_internals.tensors import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lockstitch.collectives import Session
    from lockstitch.hvd.exchange import ReducerOptions


class GradientReducer:
    """Reduces the gradients of one optimizer, each when it is complete."""

    def __init__(
        self,
        options: ReducerOptions,
        names: Mapping[torch.Tensor, str],
        groups: Iterable[Sequence[torch.Tensor]] | None,
        passes: int,
    ) -> None:
        """Without `groups`, neighbours that are small are reduced together (`buckets_of`)."""
        if any(parameter.is_cpu for parameter in names):
            # Backward makes each gradient anew, and frees it when the bucket has it.
            keep_freed_memory(MOST_KEPT_BLOCK_BYTES)
        session = current_session()
        # The process's own session may be another one after a new init; a test's stays.
        self._session = None if session is PROCESS.session else session
        self._options = options
        self._prefix = f"optimizer.{PROCESS.next_number(session)}"
        self._states = {parameter: ParameterState(name) for parameter, name in names.items()}
        chosen = buckets_of(list(names)) if groups is None else list(groups)
        for group in chosen:
            for parameter in group:
                self._state(parameter)
        self._groups = Groups(chosen, self._states)
        self._parameters: tuple[torch.Tensor, ...] = ()
        self._buckets: dict[int | torch.Tensor, Bucket] = {}
        """By the number of the group, or by the parameter that is in none."""
        self._under_way: list[Exchange] = []
        self._wave = 0
        self._is_needed: bool | None = None
        """As long as a step lasts; the job may be another one then."""
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
    def names(self) -> dict[torch.Tensor, str]:
        """The names under which gradients are reduced."""
        return {parameter: state.name for parameter, state in self._states.items()}

    @property
    def is_needed(self) -> bool:
        """Whether there is another rank to reduce with."""
        if self._is_needed is None:
            process_set = self._options.process_set
            self._is_needed = bool(process_set.included()) and size_of(process_set) > 1
        return self._is_needed

    @property
    def is_under_way(self) -> bool:
        """Whether some gradients are being reduced."""
        return bool(self._under_way)

    def is_finished(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Returns whether all gradients of these are reduced."""
        return self.is_settled and not self._missing(parameters)

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Sees to it that gradients of these are noticed; harmless when repeated."""
        self._parameters = tuple(parameters)
        for parameter in self._parameters:
            state = self._state(parameter)
            if parameter.requires_grad and not state.is_hooked:
                hook = _hook(weakref.ref(self), state)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                state.is_hooked = True

    def accumulated(self, parameter: torch.Tensor, state: ParameterState) -> None:
        """Backward has added to a gradient."""
        if self.is_settled:
            self._begin_wave()
        if state.is_filled:
            self._fills_early = False
        if self.is_paused:
            return
        if self._was_changed(state, gradient_of(parameter)):
            state.count = 0
        count = state.count_pass(parameter.grad)
        if count > self.passes and self.is_needed:  # else nothing was reduced, and all is well
            raise AssertionError(
                f"the gradient of {state.name!r} was computed {count} times since the "
                f"last step, with backward_passes_per_step={self.passes}. Raise that number to "
                "accumulate gradients, or use no_sync() for all backward passes but the last"
            )
        if count < self.passes:
            self._groups.take_back(state)
        elif self._is_needed or self.is_needed:
            if self._groups.complete(state):
                self._submit(self._groups.unit(parameter))
            if not self._is_at_end:
                self._is_at_end = True
                queue_callback(self._end_backward)

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
            for state in self._states.values():
                state.count = 0
            self._groups.begin_anew()
            self._is_needed = None
            self._is_at_end = False
        self.is_settled = True
        if disturbed:
            raise RuntimeError(self._why_disturbed(disturbed))

    def reset(self) -> None:
        """A new step begins."""
        self._is_needed = None
        for state in self._states.values():
            state.begin_step()
        self._groups.begin_anew()
        self._under_way.clear()
        self._wave = 0
        self.is_settled = False
        self._is_at_end = False

    # ------------------------------------------------------------ inside

    def _begin_wave(self) -> None:
        """Gradients change after they were reduced."""
        self.is_settled = False
        states = self._states.values()
        self._wave += any(state.is_submitted for state in states)
        for state in states:
            state.is_submitted = False
        self._groups.begin_anew()

    def _was_changed(self, state: ParameterState, gradient: torch.Tensor) -> bool:
        """Returns whether the program has changed the gradient in place since it was reduced, as it
        does to clip it, or to set it to zero when `GradScaler` has passed over a step. An average
        is the same on all ranks: what is added to it and averaged again is right. A sum is not."""
        reduced, state.reduced_version = state.reduced_version, None
        is_average = self._options.reduction.op is ReduceOp.AVERAGE
        return is_average and reduced is not None and version_of(gradient) > reduced + 1

    def _state(self, parameter: torch.Tensor) -> ParameterState:
        state = self._states.get(parameter)
        if state is None:
            state = self._states[parameter] = ParameterState(f"noname.{len(self._states)}")
        return state

    def _end_backward(self) -> None:
        """The end of a pass with which at least one gradient was complete."""
        if not self._is_at_end:  # it was finished meanwhile
            return
        self._is_at_end = False
        missing = self._missing(self._parameters)
        has_begun = any(0 < self._states[each].count < self.passes for each in missing)
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
        """Waits until nothing is under way; returns whether that is so."""
        while self._under_way:
            exchange = self._under_way[0]
            if unless_wanted and not exchange.wait_unless_wanted():
                return False
            exchange.wait()
            del self._under_way[0]
            for parameter in exchange.parameters:  # it may be another tensor now
                state = self._states[parameter]
                if self._options.sparse_as_dense and state.sparse_dim is not None:
                    parameter.grad = gradient_of(parameter).to_sparse(state.sparse_dim)
                gradient = gradient_of(parameter)
                state.counted = weakref.ref(gradient)
                state.reduced_version = version_of(gradient)
        return True

    def _missing(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Returns what has to be submitted before the step."""
        if not self.is_needed:
            return []
        state = self._state
        return [
            each
            for each in parameters
            if not state(each).is_submitted and (each.requires_grad or each.grad is not None)
        ]

    def _submit_missing(self) -> None:
        missing = self._missing(self._parameters)
        if not self._wave:
            self.without_gradient = []
            for each in missing:
                if each.grad is None:
                    state = self._states[each]
                    state.is_filled = True
                    self.without_gradient.append(state.name)
        for parameter in missing:
            if not self._states[parameter].is_submitted:
                self._submit(self._groups.unit(parameter))

    def _submit(self, unit: list[torch.Tensor]) -> None:
        session = self._session or current_session()
        states = [self._states[parameter] for parameter in unit]
        for parameter, state in zip(unit, states, strict=True):
            state.is_submitted = True
            self._fill(parameter, state)
        alone: list[list[torch.Tensor]] = []
        together: list[torch.Tensor] = []
        for parameter, state in zip(unit, states, strict=True):
            if self._travels_sparse(state) or self._becomes_narrow(parameter):
                alone.append([parameter])
            else:
                together.append(parameter)
        for parameters in (*alone, together):
            if parameters:
                self._under_way.append(self._exchange(session, parameters))

    def _exchange(self, session: Session, parameters: list[torch.Tensor]) -> Exchange:
        options = self._options
        state = self._states[parameters[0]]
        name = f"{self._prefix}.{state.name}"
        if self._wave:
            name += f".again.{self._wave}"
        if self._travels_sparse(state):
            return Exchange(session, options, name, parameters)
        if self._becomes_narrow(parameters[0]):
            return LowRankExchange(session, options, name, parameters[0])
        if fits_into_bucket(session, options, parameters):
            return self._bucket_exchange(session, name, parameters)
        return Exchange(session, options, name, parameters)

    def _bucket_exchange(
        self, session: Session, name: str, parameters: list[torch.Tensor]
    ) -> BucketExchange:
        number = self._states[parameters[0]].group
        key = parameters[0] if number is None or len(parameters) == 1 else number
        bucket = self._buckets.get(key)
        if bucket is None or not bucket.suits(session, parameters):
            bucket = self._buckets[key] = Bucket(session, parameters)
        return BucketExchange(session, self._options, name, bucket, parameters)

    def _becomes_narrow(self, parameter: torch.Tensor) -> bool:
        """Returns whether its gradient travels as two narrow matrices."""
        compression = self._options.compression
        return isinstance(compression, PowerSGD) and compression.compresses(parameter)

    def _travels_sparse(self, state: ParameterState) -> bool:
        return state.sparse_dim is not None and not self._options.sparse_as_dense

    def _fill(self, parameter: torch.Tensor, state: ParameterState) -> None:
        """Gives the parameter a gradient if it has none, as sparse as it was last time."""
        if parameter.grad is None:
            if state.sparse_dim is None or self._options.sparse_as_dense:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad = sparse_zeros(parameter, state.sparse_dim)
        elif parameter.grad.is_sparse:
            state.sparse_dim = parameter.grad.sparse_dim()
            if self._options.sparse_as_dense:
                parameter.grad = parameter.grad.to_dense()

    def _why_disturbed(self, exchanges: Iterable[Exchange]) -> str:
        first = next(each for exchange in exchanges for each in exchange.parameters)
        return (
            f"the gradient of {self._states[first].name!r} was changed while it was being reduced, "
            "so this step is wrong. Backward could not wait for it, because other ranks came to "
            "another operation first, or because it takes several passes through different "
            "parameters: call synchronize() before you clip or unscale gradients"
        )


def _hook(
    me: weakref.ref[GradientReducer], state: ParameterState
) -> Callable[[torch.Tensor], None]:
    """Returns the hook that is called when a gradient was added to. It keeps no reducer alive."""

    def notice(parameter: torch.Tensor) -> None:
        reducer = me()
        if reducer is not None:
            reducer.accumulated(parameter, state)

    return notice
