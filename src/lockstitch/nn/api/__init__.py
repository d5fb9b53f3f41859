"""The module path by which programs know `RemoteModule`.

remote_module   a module on another worker
"""

from lockstitch.nn.api.remote_module import RemoteModule

__all__ = ["RemoteModule"]
