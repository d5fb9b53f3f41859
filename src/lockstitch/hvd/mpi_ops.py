"""Every operation and question under the module name that programs know: `hvd.mpi_ops.allreduce`.

Each name stands in the `__all__` of the module that has it, and nowhere else. Some more are found
here, as in the original, but are not told of.
"""

from lockstitch.hvd import asynchronous, basics, constants, handles, synchronous, timeline
from lockstitch.hvd import basics as _basics  # noqa: F401 - `hvd.mpi_ops._basics`, as there
from lockstitch.hvd.asynchronous import *  # noqa: F403 - their lists of names are ours
from lockstitch.hvd.basics import *  # noqa: F403
from lockstitch.hvd.common.util import gpu_available as gpu_available
from lockstitch.hvd.common.util import num_rank_is_power_2 as num_rank_is_power_2
from lockstitch.hvd.compression import Compression as Compression
from lockstitch.hvd.constants import *  # noqa: F403
from lockstitch.hvd.exceptions import HorovodInternalError
from lockstitch.hvd.handles import *  # noqa: F403
from lockstitch.hvd.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from lockstitch.hvd.synchronous import *  # noqa: F403
from lockstitch.hvd.timeline import *  # noqa: F403

__all__ = [
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
]
__all__ += basics.__all__
__all__ += constants.__all__
__all__ += synchronous.__all__
__all__ += asynchronous.__all__
__all__ += handles.__all__
__all__ += timeline.__all__
