"""Saves what the workers of a group own, and restores it onto the same or another number of them.

    checkpoint.register("model", model)      on whoever owns it; a reference will do from elsewhere
    checkpoint.save("checkpoints/latest")    on any one worker
    checkpoint.load("checkpoints/latest")    on any one worker, of this job or a later one

or, on the worker that holds all the ends of a training,

    checkpoint.save("checkpoints/latest", {"model": model, "optimizer": optimizer})

- `registry`: what a worker has registered, by name
- `structure`: states as tensors and plain values, and back
- `storage`: folders, of this host or where `fsspec` reaches
- `shards`: one worker's file, and the manifest that makes files a checkpoint
- `parts`: optimizers over several workers, whose owners of parameters write their parts themselves
- `operations`: saving and loading with all workers

Each worker writes the tensors of what it owns into a file of its own, in the format of
`safetensors`, plain values as JSON: nothing that is read is ever executed. The folder must be one
that all workers reach under the same path or address.
"""

from lockstitch.checkpoint.operations import load, names, read, save, save_async, write
from lockstitch.checkpoint.registry import CheckpointError, register, unregister

__all__ = [
    "CheckpointError",
    "load",
    "names",
    "read",
    "register",
    "save",
    "save_async",
    "unregister",
    "write",
]
