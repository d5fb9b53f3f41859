"""Where programs of the original look for `RayHostDiscovery` in the words of `RayExecutor`."""

from __future__ import annotations

from lockstitch.hvd.ray import elastic

__all__ = ["RayHostDiscovery"]


class RayHostDiscovery(elastic.RayHostDiscovery):
    """Finds the nodes of the cluster and how many workers fit on each."""

    def __init__(
        self,
        use_gpu: bool = False,
        cpus_per_worker: float = 1,
        gpus_per_worker: float | None = None,
    ) -> None:
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)
