"""The parts of a parallel step, to be used alone or overridden: `torch.nn.parallel` on any device.

scatter_gather   structures cut for the places and joined again; Replicate, Shard
replicate        a module for each place
parallel_apply   several modules at once
comm             broadcast, reduce_add, scatter, gather of tensors, without autograd
_functions       the same with autograd
containers       what a structure may be made of
places           the device behind a number or a name

`DataParallel` and `data_parallel`, made of these parts, are found here too; `lockstitch.nn` puts
them here.
"""

from typing import TYPE_CHECKING

from lockstitch.nn.parallel import comm
from lockstitch.nn.parallel.parallel_apply import parallel_apply
from lockstitch.nn.parallel.replicate import replicate
from lockstitch.nn.parallel.scatter_gather import (
    Replicate,
    Shard,
    gather,
    scatter,
    scatter_kwargs,
)

if TYPE_CHECKING:
    from lockstitch.nn.data_parallel import DataParallel, data_parallel  # noqa: TC004

__all__ = [
    "DataParallel",
    "Replicate",
    "Shard",
    "comm",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
    "scatter_kwargs",
]
