"""Smaller numbers on the way: what is sent is rounded, what arrives has the old type again."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """What a tensor becomes before it is sent, and afterwards. Programs may derive their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is sent in place of `tensor`, and what `decompress` must know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor that arrived, as the program wants it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004 - the interface
        """The tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point numbers as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """As float16, if it is of a wider floating-point type."""
        return _narrowed(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """As it was."""
        return tensor.to(ctx)


class BF16Compressor(Compressor):
    """Sends floating-point numbers as bfloat16: fewer digits than float16, the range of float32."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """As bfloat16, if it is of a wider floating-point type."""
        return _narrowed(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """As it was."""
        return tensor.to(ctx)


class Compression:
    """The compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def _narrowed(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.dtype]:
    is_wider = tensor.dtype.is_floating_point and tensor.dtype.itemsize > dtype.itemsize
    return (tensor.to(dtype) if is_wider else tensor), tensor.dtype
