"""Underscore names do what ported programs expect of them."""

from __future__ import annotations

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.rpc import api
from lockstitch.rpc.agents import RpcAgent, TensorPipeAgent
from lockstitch.runtime.worker import PROCESS
from lockstitch.testing.cluster import LocalCluster
from tests.unit.rpc.programs import GATE, add, close_gate, fail_with, wait_at_gate


@pytest.fixture
def cluster():
    close_gate()
    with LocalCluster(2) as cluster, cluster[0].active():
        yield cluster
        GATE.set()


def test_all_calls_made_within_are_waited_for_at_the_end(cluster) -> None:
    with api._wait_all():
        assert api._thread_local_var.future_list == []
        future = rpc.rpc_async("worker1", add, (1, 2))
        assert api._thread_local_var.future_list == [future]
    assert future.done()
    assert not hasattr(api._thread_local_var, "future_list")


def test_the_first_error_within_is_raised_without_waiting_for_the_rest(cluster) -> None:
    with pytest.raises(KeyError, match="gone"), api._wait_all():  # noqa: PT012 - both matter
        rpc.rpc_async("worker1", wait_at_gate)
        rpc.rpc_async("worker1", fail_with, ("gone",))
    assert not hasattr(api._thread_local_var, "future_list")


def test_functions_may_require_a_worker(cluster) -> None:
    assert api._require_initialized(add)(1, b=2) == 3


def test_functions_that_require_a_worker_refuse_without_one() -> None:
    with pytest.raises(RuntimeError, match="^RPC has not been initialized"):
        api._require_initialized(add)(1, 2)
    assert not api._is_current_rpc_agent_set()


def test_the_process_gets_one_worker_and_can_be_left_without(cluster) -> None:
    assert api._is_current_rpc_agent_set()
    with pytest.raises(TypeError, match="has no worker of Lockstitch behind it"):
        api._set_and_start_rpc_agent(RpcAgent())
    agent = TensorPipeAgent(cluster[0])
    api._set_and_start_rpc_agent(agent)
    try:
        assert PROCESS.worker is cluster[0]
        with pytest.raises(RuntimeError, match="is already initialized"):
            api._set_and_start_rpc_agent(agent)
    finally:
        api._reset_current_rpc_agent()
    assert PROCESS.worker is None


def test_figures_of_all_parts_are_gathered(cluster) -> None:
    parts = [
        rpc._rref_context_get_debug_info(),
        rpc._get_current_rpc_agent().get_debug_info(),
        autograd._get_debug_info(),
    ]
    names = [name for part in parts for name in part]
    assert len(names) == len(set(names))
    assert rpc._get_debug_info().keys() == set(names)


def test_references_can_be_given_up_at_once(cluster) -> None:
    kept = rpc.remote("worker1", torch.add, (torch.ones(1), 1))
    kept.to_here()
    rpc._delete_all_user_and_unforked_owner_rrefs()
    with pytest.raises(RuntimeError, match="after deletion"):
        kept.to_here()


def test_without_a_worker_there_are_no_references_to_give_up() -> None:
    rpc._delete_all_user_and_unforked_owner_rrefs()


def test_what_has_no_meaning_here_is_accepted() -> None:
    rpc.enable_gil_profiling(True)
    assert rpc.is_available()


def test_a_name_that_is_not_here_says_what_to_do_instead() -> None:
    with pytest.raises(AttributeError, match="pass the Python function that was scripted"):
        _ = rpc._invoke_rpc_torchscript
    with pytest.raises(AttributeError, match=r"run torch\.profiler\.profile\(\) in each worker"):
        _ = rpc._server_process_global_profile
    with pytest.raises(AttributeError, match="'rpc_snyc'$"):
        _ = rpc.rpc_snyc  # type: ignore[attr-defined]


def test_names_about_devices_lead_to_the_options_that_take_device_maps() -> None:
    with pytest.raises(AttributeError, match="device maps are given to the backend's options"):
        _ = rpc._validate_device_maps
    rpc.TensorPipeRpcBackendOptions().set_device_map("worker1", {"cpu": "cpu"})


def test_timedelta_is_found_where_programs_take_it_from() -> None:
    options = rpc.ProcessGroupRpcBackendOptions(rpc_timeout=rpc.timedelta(seconds=2))
    assert options.rpc_timeout == 2


@pytest.mark.parametrize("name", ["AllGatherStates", "Future", "PyRRef", "RRef", "WorkerInfo"])
def test_types_are_found_under_the_path_of_the_functions_too(name) -> None:
    assert getattr(api, name) is getattr(rpc, name)
