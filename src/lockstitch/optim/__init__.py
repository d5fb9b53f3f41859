"""Optimizers over parameters that live on many workers.

distributed.py   DistributedOptimizer: one optimizer on each owner, one step for all
local.py         one owner's optimizer, safe while backward passes are in flight
turns.py         steps on one owner exclude each other
"""

from lockstitch.optim.distributed import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
