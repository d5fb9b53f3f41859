"""Modules that run on several slots or on another worker: `torch.nn.parallel` and
`torch.distributed.nn`.

    api        RemoteModule: a module on another worker
    parallel   scatter, gather, replicate, parallel_apply, comm: the parts of a parallel step
"""

from lockstitch.nn import api, parallel
from lockstitch.nn.api import RemoteModule
from lockstitch.nn.parallel import Replicate, Shard

__all__ = ["RemoteModule", "Replicate", "Shard", "api", "parallel"]
