"""Where programs of `horovod.ray` look: `lockstitch.ray` under the names that they know.

    runner      RayExecutor
    elastic     ElasticRayExecutor, RayHostDiscovery
    elastic_v2  RayHostDiscovery in the words of RayExecutor
    worker      BaseHorovodWorker
    ray_logger  log

Importing it raises `ImportError`, with what to install, where there is no Ray.
"""

from lockstitch.hvd.ray import elastic, elastic_v2, ray_logger, runner, worker
from lockstitch.hvd.ray.worker import BaseHorovodWorker
from lockstitch.ray import ElasticRayExecutor, RayExecutor
from lockstitch.ray.engine import find_ray

__all__ = [
    "RayExecutor",
    "BaseHorovodWorker",
    "ElasticRayExecutor",
    "elastic",
    "elastic_v2",
    "ray_logger",
    "runner",
    "worker",
]

find_ray()
