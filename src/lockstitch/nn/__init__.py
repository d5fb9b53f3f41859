"""Modules that run on several slots or on another worker: `torch.nn.parallel` and
`torch.distributed.nn`.

    parallel   scatter, gather, replicate, parallel_apply, comm: the parts of a parallel step
"""

from lockstitch.nn import parallel
from lockstitch.nn.parallel import Replicate, Shard

__all__ = ["Replicate", "Shard", "parallel"]
