"""Batch normalisation by mean and variance of all ranks' batches together.

The sums go through `allreduce`, which has a gradient; so the input's gradient is that of one
process with the whole batch, and each rank's part of the batch may have a size of its own. First
the mean, then the squares of the distances from it: a difference of large numbers would lose
digits.
"""

from __future__ import annotations

import torch

from lockstitch.hvd.constants import Sum
from lockstitch.hvd.job import current_session
from lockstitch.hvd.synchronous import allreduce, grouped_allreduce
from lockstitch.torch_internals.modules import BatchNorm


class SyncBatchNorm(BatchNorm):
    """Takes the place of `BatchNorm1d`, `2d` and `3d`, on any device, with their arguments. All
    ranks must come through it in the same order, in forward and in backward; each may have a batch
    of another size."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`input` [batch, channels, …] to as much: in training by the statistics of all ranks,
        otherwise as ever. Raises `ValueError` below two dimensions, and what `hvd.allreduce` does.
        """
        is_by_batch = self.training or self.running_mean is None
        if not is_by_batch or current_session().size == 1:
            return super().forward(input)
        self.check_dimensions(input)
        channels = input.transpose(0, 1).flatten(1)
        wide = channels.to(torch.promote_types(input.dtype, torch.float32))
        own_count = wide.new_tensor([float(wide.shape[1])])
        total, count = grouped_allreduce([wide.sum(1), own_count], op=Sum)
        count = count.detach()
        mean = total / count
        distances = wide - mean[:, None]
        variance = allreduce(distances.square().sum(1), op=Sum) / count
        if self.training and self.track_running_stats:
            self._remember(mean.detach(), variance.detach(), count)
        result = distances * torch.rsqrt(variance + self.eps)[:, None]
        if self.affine:
            result = result * self.weight[:, None] + self.bias[:, None]
        return result.to(input.dtype).view(input.transpose(0, 1).shape).transpose(0, 1)

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Moves the running statistics, as torch does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * count / (count - 1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
