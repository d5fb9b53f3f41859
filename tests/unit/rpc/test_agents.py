"""The agent is a view of a worker under the incumbent's names."""

from __future__ import annotations

import pytest

from lockstitch import rpc
from lockstitch.memory.segments import SegmentPool
from lockstitch.rpc.agents import RpcAgent, TensorPipeAgent
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster
from tests.unit.rpc.programs import on_all


@pytest.fixture
def cluster():
    with LocalCluster(2, options=AgentOptions(num_threads=27)) as cluster, cluster[0].active():
        yield cluster


def test_two_views_of_a_worker_are_equal(cluster) -> None:
    agent = rpc._get_current_rpc_agent()
    assert isinstance(agent, RpcAgent)
    assert agent == TensorPipeAgent(cluster[0]) != TensorPipeAgent(cluster[1])


def test_workers_are_listed_and_found(cluster) -> None:
    agent = TensorPipeAgent(cluster[0])
    assert [info.name for info in agent.get_worker_infos()] == ["worker0", "worker1"]
    assert agent.get_worker_info().id == 0
    assert agent.get_worker_info("worker1") == agent.get_worker_info(1)


def test_figures(cluster) -> None:
    info = TensorPipeAgent(cluster[0]).get_debug_info()
    assert info["agent.thread_pool_size"] == "27"
    assert info["agent.client_active_calls"] == info["agent.server_active_calls"] == "0"
    assert TensorPipeAgent(cluster[0]).get_metrics() == info
    assert info["buffers.lent"] == "0"
    assert "segments.lent" not in info
    cluster[0].plug(SegmentPool(1 << 20))
    assert TensorPipeAgent(cluster[0]).get_debug_info()["segments.capacity_bytes"] == f"{1 << 20}"


def test_options_and_devices_are_those_in_force(cluster) -> None:
    agent = TensorPipeAgent(cluster[0])
    assert agent.is_static_group
    assert agent._get_device_map(agent.get_worker_info(1)) == {}
    rpc._set_rpc_timeout(7)
    options = agent._get_backend_options()
    assert (options.num_worker_threads, options.rpc_timeout) == (27, 7)
    assert isinstance(rpc.get_rpc_timeout(), float)


def test_all_can_be_waited_for_and_one_ended(cluster) -> None:
    def join_and_end() -> None:
        agent = rpc._get_current_rpc_agent()
        agent.join(timeout=10)
        agent.sync()
        agent.shutdown()

    assert set(on_all(cluster, join_and_end).values()) == {None}
