"""Errors under the names that programs know.

`HorovodInternalError` is what any operation over ranks raises: a mismatch, a rank that died, a
stall. Each has a class of its own in `lockstitch.errors`.
"""

from lockstitch.errors import CollectiveError as HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - the original's name; it is no error
    """Workers have come or are to go: the ranks meet anew before they go on.

    `skip_sync` says that workers are to go and none has come. It is kept for programs that look at
    it: `run` brings the states together in any case, since a rank may have come or gone meanwhile.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("workers have come or are to go")
        self.skip_sync = skip_sync
