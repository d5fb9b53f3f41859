"""Where programs of the original look for `RayExecutor` and its settings."""

from lockstitch.ray import RayExecutor
from lockstitch.ray.settings import Settings as MiniSettings

__all__ = ["RayExecutor", "MiniSettings"]
