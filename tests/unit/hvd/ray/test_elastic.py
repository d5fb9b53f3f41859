from __future__ import annotations

import pytest

from lockstitch.hvd.runner.elastic.discovery import HostDiscovery
from tests.unit.ray.cluster import FakeRay


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    nodes = ("n1", "10.0.0.1", {"CPU": 5.0}), ("n2", "10.0.0.2", {"CPU": 1.0, "GPU": 1.0})
    return FakeRay(*nodes, ("n3", "10.0.0.1", {"CPU": 2.0})).install(monkeypatch)


def test_hosts_are_named_by_their_address_with_what_fits_on_them():
    from lockstitch.hvd.ray.elastic import RayHostDiscovery  # noqa: PLC0415 - where Ray is faked

    assert issubclass(RayHostDiscovery, HostDiscovery)
    found = RayHostDiscovery(cpus_per_slot=2).find_available_hosts_and_slots()
    assert found == {"10.0.0.1": 3}
    found = RayHostDiscovery(use_gpu=True).find_available_hosts_and_slots()
    assert found == {"10.0.0.2": 1}
