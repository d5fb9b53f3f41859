"""Where programs of the original look for `ElasticRayExecutor`, and for what finds the hosts."""

from __future__ import annotations

from lockstitch.hvd.runner.elastic.discovery import HostDiscovery
from lockstitch.ray import ElasticRayExecutor
from lockstitch.ray.placement import living_nodes
from lockstitch.ray.settings import WorkerResources

__all__ = ["ElasticRayExecutor", "RayHostDiscovery"]


class RayHostDiscovery(HostDiscovery):
    """Finds the nodes of the cluster and how many ranks fit on each. A class of your own that
    derives from it, as `settings.discovery` with `override_discovery=False`, may leave some out."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_slot: float = 1, gpus_per_slot: float | None = None
    ) -> None:
        self._resources = WorkerResources.of_hvd(
            cpus_per_slot, use_gpu, gpus_per_slot if use_gpu else None, "gpus_per_slot"
        )

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns the number of ranks that fit on each node, by its address."""
        found: dict[str, int] = {}
        for node in living_nodes():
            slots = self._resources.slots_of(node["Resources"])
            if slots:
                address = node["NodeManagerAddress"]
                found[address] = found.get(address, 0) + slots
        return found


def __getattr__(name: str) -> object:
    if name == "TestDiscovery":
        raise ImportError(
            "Lockstitch has no TestDiscovery: give settings.discovery an object of your own, whose "
            "find_available_hosts_and_slots() says which nodes there are, with "
            "override_discovery=False",
            name=__name__,
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
