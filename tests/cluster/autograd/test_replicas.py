"""torch's DistributedDataParallel inside contexts reduces what it reduces outside of them.

The group has no other ranks: a communication hook, which multiplies, stands for them, and keeps
what it was given. Real ranks: tests/processes/test_examples.py.
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.autograd.replicas import observe
from lockstitch.nn import RemoteModule
from lockstitch.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHERS = 10  # what the hook multiplies by
X = torch.arange(12.0).view(3, 4) / 12


class Branches(nn.Module):
    """What is used by none, by one, or by both kinds of input."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
        self.all = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, branch: int = 0) -> torch.Tensor:
        return self.all(x) + self.branches[branch](x)


class RemoteMiddle(nn.Module):
    """Replicated parameters before and after what lives elsewhere."""

    def __init__(self, middle: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)
        self.middles = [middle]  # in a list: DDP has nothing to do with it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middles[0](self.first(x)))


KEPT: list[nn.Module] = []
"""A replica that is called from elsewhere."""


def call_kept(x: torch.Tensor) -> torch.Tensor:
    return KEPT[0](x)


def gradients_of_kept(context_id: int) -> list[torch.Tensor]:
    return gradients_of(context_id, KEPT[0])


@pytest.fixture(autouse=True)
def _group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch puts one of its own in place
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        yield cluster


def replica_of(
    module: nn.Module, reduced: list[int] | None = None, **options: Any
) -> tuple[DistributedDataParallel, list[int]]:
    """A DDP module, and the sizes of the buckets that it has reduced."""
    reduced = [] if reduced is None else reduced

    def hook(_state, bucket):  # DDP knows no annotations that are text
        reduced.append(bucket.buffer().numel())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer() * OTHERS)
        return future

    replica = DistributedDataParallel(module, **options)
    replica.register_comm_hook(None, hook)
    return replica, reduced


def gradients_of(context_id: int, module: nn.Module) -> list[torch.Tensor | None]:
    found = dist_autograd.get_gradients(context_id)
    return [found.get(parameter) for parameter in module.parameters()]


def own(module: nn.Module, x: torch.Tensor = X, factor: float = 1) -> list[torch.Tensor]:
    """The gradients that a module has by itself, times `factor`."""
    plain = copy.deepcopy(module)
    plain.zero_grad()
    plain(x).square().mean().backward()
    return [factor * parameter.grad for parameter in plain.parameters()]


def assert_all_close(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
OPTIONS = [
    {},
    {"find_unused_parameters": True},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"bucket_cap_mb": 0.00001},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_contexts_get_what_grad_gets_outside(options):
    inside, reduced = replica_of(copy.deepcopy(MODEL), **options)
    outside, reduced_outside = replica_of(copy.deepcopy(MODEL), **options)
    for step in range(3):
        x = X + step
        outside.zero_grad()
        outside(x).square().mean().backward()
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [inside(x).square().mean()])
            ours = gradients_of(context_id, inside)
        assert_all_close(ours, [parameter.grad for parameter in outside.parameters()])
        assert_all_close(ours, own(MODEL, x, OTHERS))
        assert reduced == reduced_outside
        assert len(reduced) > step
        assert all(parameter.grad is None for parameter in inside.parameters())


def test_grad_stays_as_it_was():
    replica, _ = replica_of(copy.deepcopy(MODEL))
    weight = replica.module[0].weight
    weight.grad = marks = torch.ones(4, 5).t()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [replica(X).square().mean()])
    assert weight.grad is marks
    assert torch.equal(marks, torch.ones(5, 4))


def test_a_branch_that_is_not_used_gets_what_others_have():
    replica, reduced = replica_of(Branches(), find_unused_parameters=True)
    for branch in (0, 1):
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [replica(X, branch).square().mean()])
            found = gradients_of(context_id, replica)
        unused = [gradient for gradient in found[: 2 * 2] if gradient is None]
        assert len(unused) in (0, 2)  # none: the group says that another rank used it
        used = replica.module.branches[branch].weight
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [replica.module(X, branch).square().mean()])
            alone = dist_autograd.get_gradients(context_id)[used]
        torch.testing.assert_close(found[2 * branch], OTHERS * alone)
    assert len(reduced) == 2


def test_no_sync_keeps_gradients_until_they_are_reduced():
    replica, reduced = replica_of(copy.deepcopy(MODEL))
    with dist_autograd.context() as context_id:
        with replica.no_sync():
            dist_autograd.backward(context_id, [replica(X).square().mean()])
        assert_all_close(gradients_of(context_id, replica), own(MODEL))
        assert reduced == []
        dist_autograd.backward(context_id, [replica(X).square().mean()])
        assert_all_close(gradients_of(context_id, replica), own(MODEL, X, 2 * OTHERS))
    assert len(reduced) == 1


def test_a_pass_that_does_not_reach_the_module_reduces_nothing():
    replica, reduced = replica_of(copy.deepcopy(MODEL))
    other = torch.ones(3, requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = replica(X).square().mean()
        dist_autograd.backward(context_id, [(2 * other).sum()])
        assert reduced == []
        dist_autograd.backward(context_id, [loss])
        assert_all_close(gradients_of(context_id, replica), own(MODEL, X, OTHERS))
    assert len(reduced) == 1


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_parts_before_and_after_what_lives_elsewhere(mode):
    middle = RemoteModule("worker1/cpu", nn.Linear, (4, 4))
    model = RemoteMiddle(middle)
    replica, _ = replica_of(model)
    here = nn.Sequential(model.first, middle.module_rref.to_here(), model.last)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [replica(X).square().mean()], mode=mode)
        ours = gradients_of(context_id, replica)
    theirs = own(here, X, OTHERS)
    assert_all_close(ours, theirs[:2] + theirs[4:])


def test_modules_reduce_in_the_order_of_their_forwards():
    reduced: list[int] = []
    last, _ = replica_of(nn.Linear(3, 2), reduced)
    first, _ = replica_of(nn.Linear(4, 3), reduced)
    elsewhere = RemoteModule("worker1/cpu", nn.Tanh)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [last(elsewhere(first(X))).square().mean()])
        both = nn.ModuleList([first, last])
        whole = nn.Sequential(first.module, nn.Tanh(), last.module)
        assert_all_close(gradients_of(context_id, both), own(whole, X, OTHERS))
    assert reduced == [15, 8]  # although the last has had its gradients first


def test_a_replica_on_a_worker_that_a_pass_only_reaches(cluster):
    replica, reduced = replica_of(copy.deepcopy(MODEL))
    KEPT.append(replica)
    try:
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync("worker1", call_kept, (X,)).square().mean()
            dist_autograd.backward(context_id, [loss])
            ours = rpc.rpc_sync("worker1", gradients_of_kept, (context_id,))
    finally:
        KEPT.clear()
    assert_all_close(ours, own(MODEL, X, OTHERS))
    assert len(reduced) == 1


def test_forward_is_observed_once():
    observed = DistributedDataParallel.forward
    observe(lambda: None)
    assert DistributedDataParallel.forward is observed
