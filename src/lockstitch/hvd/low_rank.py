"""PowerSGD: matrices of gradients as products of two narrow ones (Vogels et al., 2019).

One step of the power method, begun where the last one ended, finds the few directions that say most
of a matrix. With M (n x m) the gradient plus what earlier steps have left out:

    P = mean over ranks of M Q        n x r, reduced; then its columns are made orthonormal
    Q = mean over ranks of Mᵀ P       m x r, reduced; kept for the next step
    gradient = P Qᵀ                   what was left out, M - P Qᵀ, is kept by each rank

Both means are over numbers that depend linearly on M, so no rank sees the whole of another's
gradient. What has few elements, or only one dimension, is reduced as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lockstitch.collectives import AVERAGE, ReduceOp
from lockstitch.devices.kinds import kind_of
from lockstitch.hvd.compression import PowerSGD
from lockstitch.hvd.exchange import Exchange, ReducerOptions, gradient_of
from lockstitch.hvd.process_sets import id_of, size_of

if TYPE_CHECKING:
    from lockstitch.collectives import Handle, Session


class LowRankExchange(Exchange):
    """The reduction of one matrix as two narrow ones, the second of which needs the first."""

    def __init__(
        self, session: Session, options: ReducerOptions, name: str, parameter: torch.Tensor
    ) -> None:
        compression = options.compression
        assert isinstance(compression, PowerSGD)
        self._note([parameter])
        self._session, self._options = session, options
        self._name = name
        self._gradient = gradient_of(parameter)
        self._memory = compression.state_of(parameter, name)
        self._matrix = self._memory.error + self._gradient.data.reshape(self._memory.error.shape)
        with self._exactly():
            self._left = self._matrix @ self._memory.factor
        self._first = self._begin_mean(self._left, "left")
        self._factor = self._memory.factor
        """The right factor; the new one once the first reduction is there."""
        self._second: Handle[torch.Tensor] | None = None
        self._is_done = False

    def proceed(self) -> None:
        if self._second is None:
            self._session.wait(self._first)
            with self._exactly():
                self._left = torch.linalg.qr(self._left).Q
                self._factor = self._matrix.mT @ self._left
            self._second = self._begin_mean(self._factor, "right")

    def wait(self) -> None:
        self.proceed()
        if self._is_done:
            return
        assert self._second is not None
        self._session.wait(self._second)
        with self._exactly():
            mean = self._left @ self._factor.mT
        self._memory.error, self._memory.factor = self._matrix - mean, self._factor
        reduction = self._options.reduction
        factor = reduction.prescale * reduction.postscale
        if reduction.op is ReduceOp.SUM:
            factor *= size_of(self._options.process_set)
        self._gradient.data.copy_(mean.mul_(factor).view(self._gradient.shape))
        self._is_done = True

    def wait_unless_wanted(self) -> bool:
        if self._second is None and not self._session.wait_unless_wanted(self._first):
            return False
        self.proceed()
        assert self._second is not None
        return self._session.wait_unless_wanted(self._second)

    def _exactly(self) -> torch.autocast:
        """A program may call `backward` under autocast, which would round what is computed here."""
        return torch.autocast(kind_of(self._gradient.device), enabled=False)

    def _begin_mean(self, tensor: torch.Tensor, side: str) -> Handle[torch.Tensor]:
        return self._session.allreduce(
            tensor,
            AVERAGE,
            name=f"{self._name}.{side}",
            process_set=id_of(self._options.process_set),
            output=tensor,
        )
