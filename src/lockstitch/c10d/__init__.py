"""Reductions under torch's own interface: `init_process_group("lockstitch")`.

    import lockstitch.c10d
    torch.distributed.init_process_group("lockstitch")      # or new_group(backend="lockstitch")

The import makes the backend known to torch, for tensors of the CPU. `DistributedDataParallel`,
`fully_shard`, DTensor, torchrun and all else that is written for torch.distributed then goes by the
reductions of `lockstitch.collectives`, those of `hvd`.

    process_group    the backend: a `torch.distributed.ProcessGroup`, one session for each
    requests         torch's collectives as requests of a session
    reduce_ops       torch's operators as reductions
    outputs          where results go
    messages         send and recv
    works            operations under way, as torch has them
    completions      the thread that completes their futures
    open_groups      the groups of this process, ended with it
"""

from torch import distributed

from lockstitch.c10d.process_group import NAME, ProcessGroup, create

if not hasattr(distributed.Backend, NAME.upper()):
    distributed.Backend.register_backend(NAME, create, devices=["cpu"])

__all__ = ["ProcessGroup"]
