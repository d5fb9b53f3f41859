"""One gradient, or a group of them, on its way through a reduction and back into `.grad`.

What is submitted is an alias of the gradient with a version counter of its own. So the gradient's
counter moves only if the program changes it, which it must not do meanwhile: `is_disturbed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from lockstitch.collectives import AVERAGE, Kind, Reduction, Request
from lockstitch.hvd.asynchronous import sparse_operation
from lockstitch.hvd.handles import Operation
from lockstitch.hvd.process_sets import id_of
from lockstitch.torch_internals.tensors import versions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import Session
    from lockstitch.hvd.compression import Compressor
    from lockstitch.hvd.process_sets import ProcessSet

ONE_PHASE_BYTES: Final = 1 << 20
"""Up to so many together, new tensors cost less than copying the results back."""


@dataclass(frozen=True, slots=True)
class ReducerOptions:
    """How gradients are reduced."""

    compression: type[Compressor] | Compressor
    process_set: ProcessSet
    reduction: Reduction = AVERAGE
    sparse_as_dense: bool = False


class Exchange:
    """Gradients of some parameters, all dense or one sparse, that are being reduced together."""

    def __init__(
        self,
        session: Session,
        options: ReducerOptions,
        name: str,
        parameters: Sequence[torch.Tensor],
    ) -> None:
        self._options = options
        self._note(parameters)
        begin = self._begin_sparse if self._gradients[0].is_sparse else self._begin
        self._operation: Operation[None] | None = begin(session, name)

    def proceed(self) -> None:
        """Does what has to be done before the other exchanges are waited for; may wait itself."""

    def wait(self) -> None:
        """Waits until the parameters have the reduced gradients. Raises `HorovodInternalError`."""
        if self._operation is not None:
            self._operation.wait()
            # What it was to do with the result holds this exchange, and with it the gradients.
            self._operation = None
            self._gradients.clear()

    def wait_unless_wanted(self) -> bool:
        """See `Session.wait_unless_wanted`."""
        return self._operation is None or self._operation.wait_unless_wanted()

    def is_disturbed(self) -> bool:
        """Returns whether the program has changed a gradient since it was submitted."""
        pairs = zip(self.parameters, self._gradients, strict=True)
        return versions_of(self._gradients) != self._versions or any(
            parameter.grad is not gradient for parameter, gradient in pairs
        )

    def _note(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = parameters
        self._gradients = [gradient_of(parameter) for parameter in parameters]
        self._versions = versions_of(self._gradients)

    def _begin(self, session: Session, name: str) -> Operation[None]:
        compression = self._options.compression
        pairs = [compression.compress(gradient.data) for gradient in self._gradients]
        sent = tuple(tensor for tensor, _ in pairs)
        is_small = sum(tensor.nbytes for tensor in sent) <= ONE_PHASE_BYTES and len(sent) > 1
        handle = session.submit(
            Request(
                Kind.ALLREDUCE,
                name,
                sent,
                outputs=None if is_small else sent,
                reduction=self._options.reduction,
                process_set=id_of(self._options.process_set),
                is_group=True,
                is_awaited=True,
            )
        )

        def store(reduced: list[torch.Tensor]) -> None:
            for parameter, gradient, tensor, (_, note) in zip(
                self.parameters, self._gradients, reduced, pairs, strict=True
            ):
                result = compression.decompress(tensor, note)
                if result.data_ptr() == gradient.data_ptr():
                    continue
                if parameter.grad is gradient and result.stride() == gradient.stride():
                    parameter.grad = result
                else:
                    gradient.data.copy_(result)

        return Operation(session, handle, store)

    def _begin_sparse(self, session: Session, name: str) -> Operation[None]:
        (parameter,), (gradient,) = self.parameters, self._gradients
        operation = sparse_operation(
            session, gradient, name, self._options.reduction.op, self._options.process_set
        )

        def store(reduced: torch.Tensor) -> None:
            parameter.grad = reduced

        return operation.then(store)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter that has one."""
    assert parameter.grad is not None
    return parameter.grad


def sparse_zeros(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient of the parameter, without entries."""
    return torch.sparse_coo_tensor(
        torch.empty(sparse_dim, 0, dtype=torch.int64, device=parameter.device),
        parameter.new_empty(0, *parameter.shape[sparse_dim:]),
        parameter.shape,
        check_invariants=False,
    )
