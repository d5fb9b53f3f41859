"""Workers of rpc on a cluster of Ray: two nodes in one machine."""

from __future__ import annotations

import pytest

from tests.engines.programs import run

pytest.importorskip("ray", reason="needs the extra engines")
pytestmark = pytest.mark.slow

GROUP = '''
import os, threading, time
import ray, torch
from ray.cluster_utils import Cluster
import lockstitch.ray
from lockstitch import rpc
from lockstitch.errors import OwnerDiedError, PeerDiedError, RpcTimeoutError
from lockstitch.autograd import backward, context, get_gradients

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
other = cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, log_to_driver=False)
LOCK = threading.Lock()


class Layer:
    """Of this program's `__main__`, which the workers do not run."""

    def __init__(self, value):
        self.weight = torch.full((2, 2), value, requires_grad=True)

    def forward(self, x):
        return x @ self.weight


def place():
    return rpc.get_worker_info().name, rpc.get_worker_info().id, os.getpid()


def node():
    return ray.get_runtime_context().get_node_id()


def ask(name):
    return rpc.rpc_sync(name, place)


with lockstitch.ray.workers(3, resources_per_worker={"CPU": 1}, max_restarts=2) as group:
    assert list(group) == ["worker0", "worker1", "worker2"]
    assert [rpc.rpc_sync(name, place)[:2] for name in group] == [
        ("worker0", 0), ("worker1", 1), ("worker2", 2)
    ]
    assert len({rpc.rpc_sync(name, node) for name in group}) == 2
    assert rpc.rpc_sync("worker0", ask, args=("worker1",))[0] == "worker1"
    assert rpc.rpc_sync("worker2", ask, args=("driver",))[0] == "driver"

    # One backward pass over a worker gives what plain PyTorch gives.
    x = torch.ones(1, 2, requires_grad=True)
    layer = rpc.remote("worker1", Layer, args=(3.0,))
    with context() as number:
        backward(number, [layer.rpc_sync().forward(x).sum()])
        gradient = get_gradients(number)[x]
    local = Layer(3.0)
    local.forward(x).sum().backward()
    torch.testing.assert_close(gradient, x.grad)
    print("values are right")

    # The first worker that came dies, then another, then a whole node.
    for victim in ("worker0", "worker1"):
        before = rpc.get_worker_info(victim)
        pid = ask(victim)[2]
        begun = time.monotonic()
        os.kill(pid, 9)
        try:
            rpc.rpc_sync(victim, time.sleep, args=(60,))
        except PeerDiedError:
            heard = time.monotonic() - begun
        rpc.wait_for_worker(victim, timeout=60, after=before)
        name, rank, new = ask(victim)
        assert (name, rank) == (victim, before.id) and new != pid
        print(f"{victim}: heard after {heard:.3f} s, back after {time.monotonic() - begun:.2f} s")
    assert [group.restarts(name) for name in group] == [1, 1, 0]
    try:
        layer.to_here()
    except OwnerDiedError:
        print("what it held is gone")
    on_other = [name for name in group if rpc.rpc_sync(name, node) == other.node_id]
    before = {name: rpc.get_worker_info(name) for name in on_other}
    cluster.remove_node(other, allow_graceful=False)
    cluster.add_node(num_cpus=2)
    for name in on_other:
        rpc.wait_for_worker(name, timeout=120, after=before[name])
    assert sorted(ask(name)[0] for name in group) == list(group)
    print("workers of a dead node are back", on_other)
    # One that is killed more often than it may be started again.
    victim = on_other[0]
    while True:
        before = rpc.get_worker_info(victim)
        os.kill(ask(victim)[2], 9)
        try:
            rpc.wait_for_worker(victim, timeout=20, after=before)
        except RpcTimeoutError:
            break
    assert group.restarts(victim) == 2
    try:
        ask(victim)
    except PeerDiedError:
        print("who may not be replaced any more is dead")

try:
    rpc.rpc_sync("worker2", place)
except RuntimeError:
    print("after the block there is no group")


def broken():
    raise ImportError("not on this node")


begun = time.monotonic()
try:
    with lockstitch.ray.workers(5):
        pass
except TimeoutError as error:
    assert "2 CPU" in str(error), error
assert time.monotonic() - begun < 15
try:
    with lockstitch.ray.workers(1, rpc_options={"num_worker_threads": 0}):
        pass
except ValueError as error:
    assert "num_worker_threads" in str(error), error
    print("what cannot be is refused")
with lockstitch.ray.workers(["ps"], placement="STRICT_PACK") as group:
    assert ask("ps")[:2] == ("ps", 0)
    print("and there may be another group")
ray.shutdown()
cluster.shutdown()
'''


def test_workers_are_replaced_under_their_names(tmp_path):
    out = run(tmp_path, GROUP)
    for line in (
        "values are right",
        "what it held is gone",
        "workers of a dead node are back",
        "who may not be replaced any more is dead",
        "after the block there is no group",
        "what cannot be is refused",
        "and there may be another group",
    ):
        assert line in out
