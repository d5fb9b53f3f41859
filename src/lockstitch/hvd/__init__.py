"""Training on many ranks with the interface of Horovod: `import lockstitch.hvd as hvd`.

    basics           init, shutdown, rank, size, …; what is built in
    communicators    ranks that know each other by mpi4py
    environment      what the launcher has told this process
    batch            the same where MPI or Slurm has started it
    job              which session the calling code belongs to
    process_sets     operations among some of the ranks
    synchronous      allreduce, allgather, broadcast, … and their results
    asynchronous     the same, returning handles at once
    gradients        the same as nodes of the autograd graph
    handles          poll, synchronize, join, barrier
    constants        Average, Sum, …
    compression      smaller numbers on the way
    functions        the same parameters, optimizer state and objects on all ranks
    optimizer        DistributedOptimizer
    reducer          its gradients on their way from backward to step
    groups           which of them go together, and when
    exchange         one reduction of gradients
    bucket           the same in shared memory, where they live from then on
    low_rank         the same by PowerSGD
    adasum           an optimizer that combines changes instead of gradients
    sync_batch_norm  SyncBatchNorm
    exceptions       HorovodInternalError, HostsUpdatedInterrupt
    timeline         start_timeline, stop_timeline
    logs             what HOROVOD_LOG_LEVEL asks for
    worlds           the way into a session where workers come and go
    elastic          training that goes on while they do
    runner           run: a function on many ranks
    common           the modules of `horovod.common`
    mpi_ops          all operations under the module name that programs know
    ray, spark       errors that say what to do instead; torch: one that says where to look

The work is done by `lockstitch.collectives`.
"""

from lockstitch.hvd import (
    common,
    compression,
    elastic,
    exceptions,
    functions,
    mpi_ops,
    optimizer,
    process_sets,
    runner,
    sync_batch_norm,
)
from lockstitch.hvd.compression import Compression
from lockstitch.hvd.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from lockstitch.hvd.mpi_ops import *  # noqa: F403 - its list of names is ours
from lockstitch.hvd.optimizer import DistributedOptimizer
from lockstitch.hvd.runner import run
from lockstitch.hvd.sync_batch_norm import SyncBatchNorm

__all__ = [
    "DistributedOptimizer",
    "SyncBatchNorm",
    "broadcast_parameters",
    "broadcast_optimizer_state",
    "broadcast_object",
    "allgather_object",
    "Compression",
    "common",
    "compression",
    "elastic",
    "exceptions",
    "functions",
    "mpi_ops",
    "optimizer",
    "run",
    "runner",
    "process_sets",
    "sync_batch_norm",
]
__all__ += mpi_ops.__all__
