"""Reductions under torch's own interface: `init_process_group("lockstitch")`.

    import lockstitch.c10d
    torch.distributed.init_process_group("lockstitch")      # or new_group(backend="lockstitch")

The import makes the backend known to torch, for tensors of the CPU. `DistributedDataParallel`,
`fully_shard`, DTensor, torchrun and all else that is written for torch.distributed then goes by the
reductions of `lockstitch.collectives`, those of `hvd`.

    process_group    the backend: a `torch.distributed.ProcessGroup`, one session for each
    requests         torch's collectives as requests of a session
    sparse           sums of sparse tensors
    repetitions      small reductions and broadcasts that come again and again
    reduce_ops       torch's operators as reductions
    outputs          where results go
    buckets          gradient buckets of DistributedDataParallel, reduced where they lie
    messages         send and recv; between hosts: gloo_messages
    works            operations under way, as torch has them
    completions      the threads that complete their futures; futures: what their callbacks submit
    membership       what all operations of a group have in common
    flight_recorder  the last operations of this process, for people; for torch's tools: trace
    reports          what ranks do instead of coming
    open_groups      the groups of this process, ended with it
    monitored_barrier   torch's own function, for groups of this backend too
"""

from torch import distributed

from lockstitch.c10d import monitored_barrier
from lockstitch.c10d.process_group import NAME, ProcessGroup, create
from lockstitch.c10d.trace import dump_trace
from lockstitch.observe.wait_reports import listen

listen()

if not hasattr(distributed.Backend, NAME.upper()):
    distributed.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
monitored_barrier.install(ProcessGroup)

__all__ = ["ProcessGroup", "dump_trace"]
