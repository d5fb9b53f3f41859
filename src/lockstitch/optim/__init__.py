"""Optimizers over parameters that live on many workers.

distributed.py   DistributedOptimizer: one optimizer on each owner, one step for all
groups.py        groups of parameters, as programs give and see them
parameters.py    references to the parameters of a module elsewhere
owners.py        what the owners are asked, and their answers taken together
clipping.py      clip_grad_norm_ and its kin, over many workers
averaging.py     averages of weights: EMA and SWA
scaling.py       GradScaler: all owners step, or none
local.py         one owner's optimizer, safe while backward passes are in flight
gradients.py     what an owner has in one or several contexts
eager.py         torch's optimizers without its compiler, which takes seconds to import
states.py        the owners' states as one, and back
update_lock.py   steps on one owner exclude each other

What else `torch.distributed.optim` offers (`ZeroRedundancyOptimizer`, `PostLocalSGDOptimizer`,
`as_functional_optim` …) has nothing to do with remote parameters and is found here as it is there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lockstitch.optim.averaging import AveragedModel, update_bn
from lockstitch.optim.clipping import (
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from lockstitch.optim.distributed import DistributedOptimizer
from lockstitch.optim.parameters import named_parameters_of, parameters_of
from lockstitch.optim.scaling import GradScaler

if TYPE_CHECKING:
    from torch.distributed.optim import PostLocalSGDOptimizer as PostLocalSGDOptimizer
    from torch.distributed.optim import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer
    from torch.distributed.optim import as_functional_optim as as_functional_optim

__all__ = [
    "AveragedModel",
    "DistributedOptimizer",
    "GradScaler",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "named_parameters_of",
    "parameters_of",
    "update_bn",
]

if not TYPE_CHECKING:  # else a type checker would find any name here

    def __getattr__(name: str) -> object:
        """Returns what torch offers under this name; imported when first asked for: it takes a
        second."""
        if not name.startswith("__"):
            theirs = importlib.import_module("torch.distributed.optim")
            if hasattr(theirs, name):
                return getattr(theirs, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
