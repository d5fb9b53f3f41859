"""`assert_same_gradients` accepts what is right and refuses, with the reason, what is not."""

from __future__ import annotations

import pytest
import torch

from lockstitch import rpc
from lockstitch.testing import LocalCluster, ProcessCluster, assert_same_gradients

torch.manual_seed(7)
FIRST, SECOND = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
UNUSED = torch.ones(2, requires_grad=True)
INPUT = torch.ones(2, 4, requires_grad=True)
FACTORS = {"on_worker": 1.0}


def first(x):
    return torch.relu(FIRST(x))


def second(call, x):
    """Calls further on."""
    return SECOND(call("worker1", first, x)) + call("worker1", first, x * 2).sum()


def chain(call):
    return call("worker2", second, call, INPUT).mean()


def of_first():
    return FIRST


def of_second():
    return {"weight": SECOND.weight, "bias": SECOND.bias}


def inputs():
    return [INPUT, UNUSED]


LEAVES = {"worker0": inputs, "worker1": of_first, "worker2": of_second}


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster:
        yield cluster


def test_chain_over_three_workers_has_the_gradients_of_one_process(cluster):
    gradients = assert_same_gradients(chain, cluster, LEAVES)
    assert set(gradients["worker1"]) == {"weight", "bias"}
    assert gradients["worker0"]["0"].shape == INPUT.shape
    assert gradients["worker0"]["1"] is None
    assert all(leaf.grad is None for leaf in (INPUT, FIRST.weight, SECOND.weight))


def scaled(x):
    return x * (FACTORS["on_worker"] if rpc.api._is_current_rpc_agent_set() else 1.0)


def deviating(call):
    return call("worker1", scaled, INPUT).sum()


def test_wrong_gradients_are_listed(cluster, monkeypatch):
    assert_same_gradients(deviating, cluster, {"worker0": inputs})
    monkeypatch.setitem(FACTORS, "on_worker", 1.25)
    with pytest.raises(AssertionError) as caught:
        assert_same_gradients(deviating, cluster, {"worker0": inputs})
    assert "loss: they differ by up to 2" in str(caught.value)
    assert "gradient of '0' on 'worker0': they differ by up to 0.25" in str(caught.value)
    assert_same_gradients(deviating, cluster, {"worker0": inputs}, atol=3.0)


def cut(x):
    return x.detach().requires_grad_() if rpc.api._is_current_rpc_agent_set() else x


def forgetful(call):
    return (call("worker1", cut, INPUT) * INPUT.detach()).sum()


def test_missing_gradient_is_named(cluster):
    with pytest.raises(AssertionError, match=r"one process has torch.float32 of .*cluster none"):
        assert_same_gradients(forgetful, cluster, {"worker0": inputs})


def random():
    return [torch.rand(3, requires_grad=True)]


def test_leaves_must_begin_equal(cluster):
    with pytest.raises(AssertionError, match="value at the beginning of '0' on 'worker1'"):
        assert_same_gradients(chain, cluster, {"worker1": random})


def test_leaves_are_told_by_functions_that_a_module_holds(cluster):
    with pytest.raises(ValueError, match="leaves of 'worker1', is no function that a module"):
        assert_same_gradients(chain, cluster, {"worker1": lambda: FIRST})


EMBEDDING = torch.nn.Embedding(5, 2, sparse=True)


def of_embedding():
    return EMBEDDING


def look_up(indices):
    return EMBEDDING(indices)


def sparse(call):
    return call("worker0", look_up, torch.tensor([1, 3, 1])).sum()


def test_other_drivers_and_sparse_gradients(cluster):
    leaves = {"worker0": of_embedding}
    gradients = assert_same_gradients(sparse, cluster, leaves, driver="worker2")
    assert gradients["worker0"]["weight"].is_sparse


def test_error_of_the_program_passes_through(cluster):
    def broken(call):
        raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        assert_same_gradients(broken, cluster, LEAVES)


def test_processes_of_their_own_have_the_gradients_of_this_one():
    with ProcessCluster(3, start_method="fork") as cluster:
        assert_same_gradients(chain, cluster, LEAVES)
