"""Slots on workers. What all kinds of slots have in common is told by tests/parity/behaviours,
which tests/processes/test_remote_slots.py runs with a slot in another process."""

from __future__ import annotations

import copy
import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn, optim

import lockstitch.autograd as dist_autograd
from lockstitch.errors import NotInitializedError, RpcError, SerializationError, SlotDiedError
from lockstitch.nn import DataParallel
from lockstitch.nn.slots.remote import Replica, is_on_worker
from lockstitch.optim import DistributedOptimizer, parameters_of
from lockstitch.rpc import RRef
from lockstitch.runtime.worker import current_worker
from lockstitch.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

X = torch.arange(24.0).view(6, 4) / 24


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 2)
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor, fails: bool = False) -> torch.Tensor:
        if fails and where() == "worker1":
            raise KeyError("lost")
        return self.second(self.norm(self.first(x))) * self.fixed


class Tricky:
    """An argument that cannot be received on worker1."""

    def __reduce__(self) -> Any:
        return receive, ()


def receive() -> Tricky:
    if where() == "worker1":
        raise ValueError("cannot be received here")
    return Tricky()


def where() -> str:
    return current_worker().name


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster, cluster["worker0"].active():
        yield cluster
        # torch's engine keeps what a failed pass had left to do until the next pass.
        torch.ones(1, requires_grad=True).sum().backward()
        gc.collect()


@pytest.fixture
def parallel(cluster: LocalCluster) -> Iterator[DataParallel[Net]]:
    model = DataParallel(Net().eval(), ["cpu", "worker1"])
    yield model
    model.close()


def parameter_bytes(model: DataParallel[Any]) -> int:
    return model.slots[0].statistics.parameter_bytes


def assert_is_plain(model: DataParallel[Any], twin: nn.Module) -> None:
    """A step of both, without an update."""
    model.zero_grad()
    twin.zero_grad()
    ours, theirs = model(X), twin(X)
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for mine, other in zip(model.module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_what_a_fused_optimizer_has_stepped_is_sent(cluster) -> None:
    model = nn.Linear(4, 2)
    parallel = DataParallel(model, ["worker0", "worker1"])
    optimizer = optim.SGD(model.parameters(), lr=0.5, fused=True)
    for _ in range(2):  # whose steps leave no trace in versions
        outputs = parallel(X)
        torch.testing.assert_close(outputs, model(X))
        outputs.square().sum().backward()
        optimizer.step()


def test_what_a_distributed_optimizer_has_stepped_is_sent(cluster) -> None:
    model = nn.Linear(4, 2)
    parallel = DataParallel(model, ["worker0", "worker1"])
    optimizer = DistributedOptimizer(optim.SGD, parameters_of(RRef(model)), lr=0.5)
    for _ in range(2):  # the graphs of slots do not notice it, nor do those of one process
        with dist_autograd.context() as context_id:
            outputs = parallel(X)
            torch.testing.assert_close(outputs, model(X))
            dist_autograd.backward(context_id, [outputs.square().sum()])
            optimizer.step(context_id)


@pytest.mark.parametrize(
    "places", [["cpu", "worker1"], ["cpu", "worker1/cpu", "rank:2"], ["cpu", "thread", "worker2"]]
)
def test_training_is_that_of_the_plain_module(cluster, places):
    model = DataParallel(Net().eval(), places)
    twin = copy.deepcopy(model.module)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, twin)]
    for _ in range(3):
        assert_is_plain(model, twin)
        for optimizer in optimizers:
            optimizer.step()
    model.close()


def test_only_parameters_that_have_changed_travel(parallel):
    module = parallel.module
    whole = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    parallel(X)
    assert parameter_bytes(parallel) == whole
    parallel(X)
    assert parameter_bytes(parallel) == whole
    with torch.no_grad():
        module.second.bias.add_(1)
    assert_is_plain(parallel, copy.deepcopy(module))
    assert parameter_bytes(parallel) == whole + module.second.bias.nbytes


def test_buffers_and_frozen_parameters_travel_when_they_have_changed(parallel):
    module = parallel.module
    parallel(X)
    assert parallel.slots[0].statistics.other_bytes == 0
    with torch.no_grad():
        module.norm.running_mean.add_(1)
        module.fixed.mul_(3)
    assert_is_plain(parallel, copy.deepcopy(module))
    assert parallel.slots[0].statistics.other_bytes > 0
    module.train()
    twin = copy.deepcopy(module)
    parallel(X)
    twin(X[:3])  # slot 0 keeps what its part of the batch has changed
    assert torch.equal(module.norm.running_mean, twin.norm.running_mean)


def test_an_error_has_its_type_and_the_slots_name(parallel):
    with pytest.raises(KeyError, match="lost") as caught:
        parallel(X, fails=True)
    assert "slot 1 (worker 'worker1')" in str(caught.value.__cause__)
    assert_is_plain(parallel, copy.deepcopy(parallel.module))


def test_a_slot_that_misses_a_request_is_replaced(parallel):
    parallel(X)
    (slot,) = parallel.slots
    with torch.no_grad():
        parallel.module.first.weight.mul_(2)
    with pytest.raises((SerializationError, ValueError), match="cannot be received here"):
        parallel(X, Tricky())
    assert_is_plain(parallel, copy.deepcopy(parallel.module))
    assert parallel.slots != (slot,)


def test_a_request_that_nobody_waits_for_does_not_disturb_the_next(parallel):
    def fail(*_arguments: Any) -> None:
        raise ZeroDivisionError

    handle = parallel.module.second.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        parallel(X)
    handle.remove()
    assert_is_plain(parallel, copy.deepcopy(parallel.module))


def test_a_worker_that_dies_is_named(cluster, parallel):
    output = parallel(X)
    cluster.kill("worker1")
    with pytest.raises(SlotDiedError, match=r"slot 1 \(worker 'worker1'\) died"):
        output.sum().backward()
    with pytest.raises(SlotDiedError, match=r"slot 1 \(worker 'worker1'\) died"):
        parallel(X)


def test_graphs_that_nobody_can_go_back_through_are_forgotten(cluster, parallel):
    graphs = []
    original = Replica.forward

    def forward(self: Replica, request: Any) -> Any:
        outcome = original(self, request)
        graphs.append(len(self._executor._graphs))
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "forward", forward)
        for _ in range(8):
            parallel(X)
        kept = [parallel(X) for _ in range(3)]
    assert max(graphs[:8]) <= 2  # the worker may hear of the one before a moment later
    assert graphs[-1] - graphs[-3] == 2
    del kept


def test_the_workers_generator_and_dtype_stay_as_they_are(cluster):
    model = DataParallel(nn.Dropout(), ["cpu", "worker1"])
    with torch.random.fork_rng(devices=[]):
        model(X)
    state = torch.get_rng_state()
    request = model.slots[0]._replica.owner().name
    assert request == "worker1"
    replica = Replica(nn.Dropout(), "cpu", "slot 1")
    assert replica.is_ready()
    model._pool.run_on(1, ((X,), {}))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() is torch.float32
    model.close()


def test_in_a_context_gradients_go_there(parallel):
    twin = copy.deepcopy(parallel.module)
    twin(X).square().sum().backward()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [parallel(X).square().sum()])
        found = dist_autograd.get_gradients(context_id)
    for mine, other in zip(parallel.module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found.get(mine), other.grad)
        assert mine.grad is None


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (["worker1", "worker2/cpu"], ["cpu", "worker1", "worker2/cpu"]),
        (["worker0", "rank:1"], ["cpu", "rank:1"]),
        (["rank:0/cpu", "worker0", "worker1"], ["cpu", "cpu", "worker1"]),
        (["thread", "worker1"], ["thread", "worker1"]),
        ([0, 1], [0, 1]),
    ],
)
def test_the_caller_takes_part_in_any_case(cluster, places, expected):
    assert DataParallel(Net(), places).device_ids == expected


def test_a_slot_needs_a_worker_here_and_there(cluster):
    with pytest.raises(RpcError, match="could not find destination"):
        DataParallel(Net(), ["cpu", "nobody"])(X)


def test_without_a_worker_it_says_so():
    with pytest.raises(NotInitializedError):
        DataParallel(Net(), ["cpu", "worker1"])(X)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("worker1", True),
        ("worker1/cpu", True),
        ("rank:2/cuda:0", True),
        ("cuda:0", False),
        ("cpu", False),
        ("thread", False),
        ("fork", False),
        (0, False),
        (torch.device("cpu"), False),
    ],
)
def test_names_of_workers(place, expected):
    assert is_on_worker(place) is expected
