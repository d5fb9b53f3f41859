"""`horovod.common.elastic`."""

from lockstitch.hvd.elastic import ObjectState, State, run_fn
from lockstitch.hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run_fn"]
