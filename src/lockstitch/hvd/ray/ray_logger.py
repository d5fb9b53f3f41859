"""Where programs of the original look for `log`."""

from lockstitch.ray import log

__all__ = ["log"]
