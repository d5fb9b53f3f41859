from __future__ import annotations

from tests.unit.ray.cluster import FakeRay


def test_resources_are_those_of_a_worker(monkeypatch):
    nodes = ("n1", "10.0.0.1", {"CPU": 5.0, "GPU": 2.0}), ("n2", "10.0.0.2", {"CPU": 1.0})
    FakeRay(*nodes).install(monkeypatch)
    from lockstitch.hvd.ray.elastic_v2 import RayHostDiscovery  # noqa: PLC0415 - Ray is faked

    found = RayHostDiscovery(cpus_per_worker=2).find_available_hosts_and_slots()
    assert found == {"10.0.0.1": 2}
    found = RayHostDiscovery(True, gpus_per_worker=2).find_available_hosts_and_slots()
    assert found == {"10.0.0.1": 1}
