"""The incumbent's module shows what stands behind `rref.rpc_sync()`."""

from __future__ import annotations

from lockstitch import rpc
from lockstitch.rpc.rref_proxy import RRefProxy
from lockstitch.testing.cluster import LocalCluster


def test_proxies_are_of_that_class() -> None:
    with LocalCluster(1) as cluster, cluster[0].active():
        assert type(rpc.RRef(1).rpc_sync()) is RRefProxy
