"""What Spark has given to the task of a rank."""

from __future__ import annotations

import os

from lockstitch.spark.task import DEVICES

__all__ = ["get_available_devices"]


def get_available_devices() -> list[str]:
    """Returns the addresses of the GPUs that Spark has given to this rank's task
    (`spark.task.resource.gpu.amount`), as texts. Empty where there are none, in the driver, and
    where USE_DEFAULT_GPU_INDEX is 1: then `hvd.local_rank()` is the index to take."""
    if os.environ.get("USE_DEFAULT_GPU_INDEX") == "1":
        return []
    return [address for address in os.environ.get(DEVICES, "").split(",") if address]
