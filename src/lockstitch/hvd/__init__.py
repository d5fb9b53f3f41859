"""Training on many ranks with the interface of Horovod: `import lockstitch.hvd as hvd`.

    basics           init, shutdown, rank, size, …; what is built in
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
    exchange         one reduction of gradients
    sync_batch_norm  SyncBatchNorm
    exceptions       HorovodInternalError
    mpi_ops          all operations under the module name that programs know

The work is done by `lockstitch.collectives`.
"""

from lockstitch.hvd import (
    compression,
    exceptions,
    functions,
    mpi_ops,
    optimizer,
    process_sets,
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
    Product,
    Sum,
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
    rocm_built,
    shutdown,
    size,
    sparse_allreduce_async,
    synchronize,
)
from lockstitch.hvd.optimizer import DistributedOptimizer
from lockstitch.hvd.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from lockstitch.hvd.sync_batch_norm import SyncBatchNorm

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "HorovodInternalError",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "reducescatter_async",
    "sparse_allreduce_async",
    "barrier",
    "join",
    "poll",
    "synchronize",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "broadcast_parameters",
    "broadcast_optimizer_state",
    "broadcast_object",
    "allgather_object",
    "Compression",
    "ProcessSet",
    "global_process_set",
    "add_process_set",
    "remove_process_set",
    "compression",
    "exceptions",
    "functions",
    "mpi_ops",
    "optimizer",
    "process_sets",
    "sync_batch_norm",
]
