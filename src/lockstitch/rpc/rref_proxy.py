"""The incumbent's path to the proxies behind `rref.rpc_sync()` and its siblings."""

from __future__ import annotations

from lockstitch.rref.proxy import RRefProxy

__all__ = ["RRefProxy"]
