"""Less on the way. Rounded numbers: what arrives has the old type again. Or products of narrow
matrices (`PowerSGD`), which take two reductions: `low_rank` carries them out."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.modes import in_plain_modes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Compressor:
    """Base of compressors, which say what becomes of a tensor before it is sent, and afterwards.
    Programs may derive their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns what is sent in place of `tensor`, and what `decompress` must know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor that arrived, as the program wants it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004 - the interface
        """Returns the tensor itself."""
        return tensor


class _Narrowing(Compressor):
    """Sends floating-point numbers as `dtype`, where that is narrower than theirs."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor as it is sent, and the type that it had."""
        is_wider = tensor.is_floating_point() and tensor.dtype.itemsize > cls.dtype.itemsize
        return (tensor.to(cls.dtype) if is_wider else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the tensor in the type that it had."""
        return tensor.to(ctx)


class FP16Compressor(_Narrowing):
    """Sends floating-point numbers as float16, if theirs is a wider type."""

    dtype = torch.float16


class BF16Compressor(_Narrowing):
    """Sends floating-point numbers as bfloat16, if theirs is a wider type: fewer digits than
    float16, the range of float32."""

    dtype = torch.bfloat16


@dataclass(slots=True)
class FactorState:
    """The state of one matrix that is kept from one step to the next."""

    error: torch.Tensor
    """What was left out on this rank, n x m."""
    factor: torch.Tensor
    """The last Q, m x r, the same on all ranks."""


class PowerSGD(NoneCompressor):
    """`compression=hvd.Compression.powersgd(rank=2)`, an own one for each optimizer.

    `rank`: the width of the factors (1); `smallest_ratio`: matrices that would not become so many
    times smaller are reduced as they are (2). The state travels with the optimizer's `state_dict`.
    Raises `ValueError` for a `rank` below 1.
    """

    def __init__(self, rank: int = 1, smallest_ratio: float = 2.0) -> None:
        if rank < 1:
            raise ValueError(f"the rank of PowerSGD must be at least 1, but is {rank}")
        self.rank = rank
        self._smallest_ratio = smallest_ratio
        self._memories: dict[torch.Tensor, FactorState] = {}

    def __repr__(self) -> str:
        return f"<PowerSGD of rank {self.rank} · {len(self._memories)} matrices>"

    def compresses(self, parameter: torch.Tensor) -> bool:
        """Returns whether it is worth while with a gradient of this parameter."""
        if parameter.ndim < 2 or not parameter.dtype.is_floating_point or not parameter.numel():
            return False
        rows = parameter.shape[0]
        columns = parameter.numel() // rows
        small = (rows + columns) * min(self.rank, rows, columns)
        return small * self._smallest_ratio <= rows * columns

    @in_plain_modes
    def state_of(self, parameter: torch.Tensor, name: str) -> FactorState:
        """Returns what is kept for a parameter; the first factor is random, but the same on all
        ranks."""
        memory = self._memories.get(parameter)
        if memory is None:
            rows = parameter.shape[0]
            columns = parameter.numel() // rows
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            width = min(self.rank, rows, columns)
            factor = torch.randn(
                columns, width, generator=generator, dtype=torch.float32, device="cpu"
            )
            memory = self._memories[parameter] = FactorState(
                torch.zeros(rows, columns, dtype=_wide(parameter.dtype), device=parameter.device),
                factor.to(parameter.device, _wide(parameter.dtype)),
            )
        return memory

    def state_dict(self, parameters: Sequence[torch.Tensor]) -> dict[int, dict[str, torch.Tensor]]:
        """Returns what is kept, by the positions of the parameters."""
        return {
            place: {"error": self._memories[each].error, "factor": self._memories[each].factor}
            for place, each in enumerate(parameters)
            if each in self._memories
        }

    def load_state_dict(
        self, parameters: Sequence[torch.Tensor], state: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Goes on from what `state_dict` gave."""
        self._memories = {
            parameters[place]: FactorState(kept["error"].clone(), kept["factor"].clone())
            for place, kept in state.items()
        }


class Compression:
    """The compressors by name: `none`; `fp16` and `bf16`, which send wider floating-point numbers
    as such; `powersgd(rank=1)`, for `DistributedOptimizer` only, which sends products of narrow
    matrices. What arrives has the old dtype again."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

    powersgd = PowerSGD


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Decompositions need at least 32 bits."""
    return torch.promote_types(dtype, torch.float32)
