"""Lockstitch: one program spans many workers, and one backward pass runs over all of them.

    rpc          calls and remote references          ← torch.distributed.rpc
    autograd     one backward pass over all workers   ← torch.distributed.autograd
    optim        DistributedOptimizer                 ← torch.distributed.optim
    nn           modules on slots, on other workers   ← torch.nn.parallel, torch.distributed.nn
    checkpoint   what the workers own, saved and restored
    hvd          training on many ranks               ← horovod.torch
    c10d         reductions under torch.distributed   ← its backend gloo
    collectives  reductions over ranks, negotiated by name
    ray          ranks and workers on Ray             ← horovod.ray
    spark        ranks as tasks of Spark              ← horovod.spark
    testing      clusters in one process, mishaps by script, proofs of equality
    launch       `lockstitch run -n 4 train.py`
    doctor       `lockstitch doctor`: what is here, and what is wrong with it
    observe      looking at running jobs: status(), waits(), stacks()
    attach       how their processes are found and asked
    replacement  ours in the place of the libraries above, for programs that nobody edits: replace()

`ARCHITECTURE.md` has the map of the whole house. (And for pytest, which would rewrite the
assertions of all modules of a package with a plugin: PYTEST_DONT_REWRITE.)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lockstitch.compiling import keep_from_compilers

if TYPE_CHECKING:
    from lockstitch.observe import explain_waits
    from lockstitch.replacement import replace

__all__ = ["__version__", "explain_waits", "replace"]

__version__ = "0.1.0.dev0"

keep_from_compilers(__name__)


if not TYPE_CHECKING:  # else a type checker would find any name here

    def __getattr__(name: str) -> object:
        # The launcher imports this package too, and has no use for torch.
        if name == "explain_waits":
            return import_module("lockstitch.observe").explain_waits
        if name == "replace":
            return import_module("lockstitch.replacement").replace
        raise AttributeError(f"module 'lockstitch' has no attribute {name!r}")
