"""All that `lockstitch.hvd` has, under the name that replacing `horovod` by `lockstitch.hvd` in a
program gives: `import lockstitch.hvd.torch as hvd`.

Its modules are those of `lockstitch.hvd`, not copies of them.
"""

import sys

from lockstitch import hvd
from lockstitch.hvd import *  # noqa: F403 - its list of names is ours
from lockstitch.hvd import (
    compression,
    elastic,
    exceptions,
    functions,
    mpi_ops,
    optimizer,
    sync_batch_norm,
)

__all__ = hvd.__all__
__path__: list[str] = []  # it has modules, though no folder

_PARTS = (compression, elastic, exceptions, functions, mpi_ops, optimizer, sync_batch_norm)
for _name, _module in list(sys.modules.items()):
    if _name.startswith(tuple(part.__name__ for part in _PARTS)):
        sys.modules[__name__ + _name.removeprefix("lockstitch.hvd")] = _module
