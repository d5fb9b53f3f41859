"""The modules of `horovod.common` that programs import from; what they offer lives elsewhere.

- `elastic`: `State`, `ObjectState`, `run_fn`
- `exceptions`: `HorovodInternalError` and its kin
- `process_sets`: `ProcessSet`, `global_process_set`, `add_process_set`, `remove_process_set`
- `util`: small questions
"""

from lockstitch.hvd.common import elastic, exceptions, process_sets, util

__all__ = ["elastic", "exceptions", "process_sets", "util"]
