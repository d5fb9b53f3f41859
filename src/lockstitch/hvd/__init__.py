"""Training on many ranks with the interface of Horovod: `import lockstitch.hvd as hvd`.

    basics           init, shutdown, rank, size, …; what is built in
    communicators    ranks that know each other by mpi4py
    environment      what the launcher has told this process
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
    ray              executors on Ray, which are `lockstitch.ray`
    spark            ranks as tasks of Spark, which are `lockstitch.spark`
    torch            all of this under the module name that programs know

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
from lockstitch.hvd.mpi_ops import (
    Adasum,
    Average,
    HorovodInternalError,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    reducescatter,
    reducescatter_async,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
    synchronize,
)
from lockstitch.hvd.optimizer import DistributedOptimizer
from lockstitch.hvd.runner import run
from lockstitch.hvd.sync_batch_norm import SyncBatchNorm
from lockstitch.observe.wait_reports import listen

listen()

__version__ = "0.28.1"
"""The Horovod whose interface this is: programs compare `horovod.__version__`."""

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
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
    "init",
    "shutdown",
    "is_initialized",
    "size",
    "rank",
    "local_size",
    "local_rank",
    "cross_size",
    "cross_rank",
    "is_homogeneous",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "Average",
    "Sum",
    "Adasum",
    "Min",
    "Max",
    "Product",
    "allreduce",
    "allreduce_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "broadcast_",
    "alltoall",
    "reducescatter",
    "grouped_reducescatter",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "allgather_async",
    "grouped_allgather_async",
    "broadcast_async",
    "broadcast_async_",
    "alltoall_async",
    "reducescatter_async",
    "grouped_reducescatter_async",
    "sparse_allreduce_async",
    "poll",
    "synchronize",
    "join",
    "barrier",
    "start_timeline",
    "stop_timeline",
]
