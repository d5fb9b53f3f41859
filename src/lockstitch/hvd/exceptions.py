"""Errors under the names that programs know.

`HorovodInternalError` is what any operation over ranks raises: a mismatch, a rank that died, a
stall. Each has a class of its own in `lockstitch.errors`.
"""

from lockstitch.errors import CollectiveError as HorovodInternalError

__all__ = ["HorovodInternalError"]
