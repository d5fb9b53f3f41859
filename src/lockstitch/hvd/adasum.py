"""`DistributedOptimizer(op=hvd.Adasum)`: each rank steps by itself, then the ranks' *changes* of
parameters are combined (Maleki et al., "Scaling Distributed Training with Adaptive Summation",
2020): what they agree about counts once, what is orthogonal is added. So the learning rate need not
grow with the number of ranks.

    parameters ──own step──▶ parameters + change     change ──Adasum over ranks──▶ the same for all
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.collectives import ReduceOp, Reduction
from lockstitch.hvd.constants import require_pairs
from lockstitch.hvd.job import current_session
from lockstitch.hvd.process_sets import id_of
from lockstitch.torch_internals.optimizers import mark_step, note_step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from lockstitch.hvd.exchange import ReducerOptions
    from lockstitch.hvd.process_sets import ProcessSet

ADASUM = Reduction(ReduceOp.ADASUM)


class Combined(torch.optim.Optimizer):
    """The methods that an optimizer gains. Gradients stay each rank's own."""

    _options: ReducerOptions
    _prefix: str
    _names: dict[torch.Tensor, str]
    backward_passes_per_step: int
    process_set: ProcessSet
    """As they were given, to look at."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """This rank's own step, with this rank's gradients; then all ranks' changes together. The
        arguments are those of the optimizer's own class.
        Raises `NotImplementedError` unless the number of ranks is a power of two."""
        require_pairs(self._options.process_set)
        note_step(self)
        parameters = [
            parameter
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        before = [parameter.detach().clone() for parameter in parameters]
        result = super().step(*args, **kwargs)
        self._combine(parameters, before)
        return result

    step.hooked = True  # type: ignore[attr-defined]
    mark_step(step)

    def _combine(self, parameters: list[torch.Tensor], before: list[torch.Tensor]) -> None:
        session, options = current_session(), self._options
        set_id = id_of(options.process_set)
        under_way = []
        for number, (parameter, start) in enumerate(zip(parameters, before, strict=True)):
            change, note = options.compression.compress(parameter.detach() - start)
            name = f"{self._prefix}.{self._names.get(parameter, number)}"
            handle = session.allreduce(change, ADASUM, name=name, process_set=set_id, output=change)
            under_way.append((handle, parameter, start, change, note))
        for handle, parameter, start, change, note in under_way:
            session.wait(handle)
            with torch.no_grad():
                parameter.copy_(start.add_(options.compression.decompress(change, note)))

    def synchronize(self) -> None:
        """Does nothing: gradients are not reduced."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Raises `AssertionError`: without the other ranks there is no step."""
        raise AssertionError("an optimizer with op=hvd.Adasum cannot skip its synchronization")

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Does nothing: backward passes always accumulate on this rank only."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Only notes the number: `step` takes whatever has been accumulated."""
        self.backward_passes_per_step = passes
