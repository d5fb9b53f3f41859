"""Modules that run on several slots or on another worker: `torch.nn.parallel` and
`torch.distributed.nn`.

    data_parallel   DataParallel: a module that works through each batch on several slots
    criterion       DataParallelCriterion: the loss computed in the slots
    automatic       on which slots, where nobody has said so: it tries, and keeps the fastest
    calibration     which of several ways is the fastest
    replica_pool    the slots of one module, and one call over all of them
    stitch          a slot's part of the batch on the autograd graph
    slots           where a part runs: fork, thread, remote
    api             RemoteModule: a module on another worker
    pipelining      Pipeline, split: a model in stages on several workers
    parallel        scatter, gather, replicate, parallel_apply, comm: the parts of a parallel step
"""

from lockstitch.nn import api, parallel
from lockstitch.nn.api import RemoteModule
from lockstitch.nn.criterion import DataParallelCriterion
from lockstitch.nn.data_parallel import DataParallel, data_parallel
from lockstitch.nn.parallel import Replicate, Shard
from lockstitch.nn.pipelining.pipeline import Pipeline
from lockstitch.nn.pipelining.splitting import split

# Where the original has them too. The package there is below, and cannot import them.
vars(parallel).update(DataParallel=DataParallel, data_parallel=data_parallel)

__all__ = [
    "DataParallel",
    "data_parallel",
    "DataParallelCriterion",
    "Replicate",
    "Shard",
    "RemoteModule",
    "Pipeline",
    "split",
    "api",
    "parallel",
]
