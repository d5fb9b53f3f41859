"""Where programs of the original look for `RayExecutor` and its settings."""

from lockstitch.hvd.ray.worker import BaseHorovodWorker
from lockstitch.ray import RayExecutor
from lockstitch.ray.settings import Settings as MiniSettings

__all__ = ["RayExecutor", "BaseHorovodWorker", "MiniSettings"]


def __getattr__(name: str) -> object:
    if name in ("Coordinator", "StaticAdapter", "StaticParams"):
        raise ImportError(
            f"Lockstitch has no {name}: RayExecutor starts its ranks and has them meet by itself "
            "(docs/how-to/run-on-ray.md)",
            name=__name__,
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
