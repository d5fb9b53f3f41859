"""Where programs of the original look for `BaseHorovodWorker`, out of which they make actors of
their own."""

from lockstitch.ray.base_worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker"]
