"""Device maps on the route of a call, as far as the CPU can show them; `tests/gpu` has the rest."""

from __future__ import annotations

import pytest
import torch

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.devices.kinds import HOST
from lockstitch.devices.maps import DeviceMap
from lockstitch.errors import RpcError
from lockstitch.runtime.agent import AgentOptions
from lockstitch.testing.cluster import LocalCluster

ABSENT = torch.device("cuda:99")


def cluster(map_: dict[torch.device, torch.device]) -> LocalCluster:
    maps = dict.fromkeys(("worker0", "worker1"), map_)
    return LocalCluster(2, options=AgentOptions(device_maps=maps))


def echo(value: object) -> object:
    return value


def wait(*call: object) -> object:
    return rpc.rpc_async(*call).wait()


def fetch(*call: object) -> object:
    return rpc.remote(*call).to_here()


@pytest.mark.parametrize("callee", ["worker0", "worker1"])
@pytest.mark.parametrize("call", [rpc.rpc_sync, wait, fetch])
def test_a_map_to_a_device_that_the_callee_has_not_fails_the_call_and_nothing_else(
    callee: str, call
) -> None:
    with cluster({HOST: ABSENT}) as workers, workers["worker0"].active():
        for size in (3, 10_000):
            with pytest.raises(
                RpcError, match="sends a tensor to cuda:99, but this worker has onl"
            ):
                call(callee, echo, (torch.ones(size),))
        assert rpc.rpc_sync(callee, echo, ([1, "x"],)) == [1, "x"]


@pytest.mark.parametrize("size", [3, 10_000])
def test_a_map_of_the_cpu_to_itself_changes_nothing(size: int) -> None:
    tensor = torch.randn(size, requires_grad=True)
    with cluster({HOST: HOST}) as workers, workers["worker0"].active():
        with dist_autograd.context() as context:
            answer = rpc.rpc_sync("worker1", torch.mul, (tensor, 3))
            dist_autograd.backward(context, [answer.sum()])
            assert dist_autograd.get_gradients(context)[tensor].eq(3).all()
        assert rpc.remote("worker1", echo, (tensor,)).to_here().equal(tensor)


def test_answers_on_the_host_need_no_entry_of_the_map() -> None:
    with cluster({HOST: ABSENT}) as workers, workers["worker0"].active():
        assert rpc.rpc_sync("worker1", echo, ("text",)) == "text"
        assert rpc.rpc_sync("worker1", torch.ones, (3,)).is_cpu


def test_gradients_go_to_the_device_of_what_was_sent_whatever_a_map_says() -> None:
    tensor = torch.randn(4, requires_grad=True)
    with (
        LocalCluster(2) as workers,
        workers["worker0"].active(),
        dist_autograd.context() as context,
    ):
        answer = rpc.rpc_sync("worker1", torch.mul, (tensor, 3))
        # From here on a map says where tensors in calls would go; gradients are none.
        for worker in workers:
            channel = worker.agent.peers.channel(workers["worker1"].id)
            channel.device_map = worker.agent.core.device_maps.setdefault(
                workers["worker1"].id, DeviceMap("worker1", {HOST: ABSENT})
            )
        dist_autograd.backward(context, [answer.sum()])
        assert dist_autograd.get_gradients(context)[tensor].eq(3).all()
