"""`horovod.common.exceptions`."""

from lockstitch.hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
