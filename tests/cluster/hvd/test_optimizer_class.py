"""The optimizer stays the object that it was: its class, state, schedulers, hooks and copies."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from lockstitch import hvd
from lockstitch.hvd.optimizer import _DistributedOptimizer
from tests.cluster.hvd.ranks import on_ranks
from tests.cluster.hvd.steps import OPTIMIZERS, batch, loss_of, mine, model


def test_class_state_scheduler_and_hooks_stay():
    def program():
        net = model()
        plain = OPTIMIZERS["sgd"](net.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(plain)
        fired = []
        optimizer.register_step_post_hook(lambda *_: fired.append(1))
        assert isinstance(optimizer, torch.optim.SGD)
        assert type(optimizer).__name__ == "SGD"
        for step in range(3):
            loss_of(net, *map(mine, batch(step))).backward()
            optimizer.step()
            scheduler.step()
            if step == 1:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.zero_grad()
        return len(fired), optimizer.param_groups[0]["lr"]

    assert on_ranks(2, program) == [(3, pytest.approx(0.1 / 8))] * 2


def test_what_an_optimizer_was_given_can_be_read():
    def program():
        plain = hvd.DistributedOptimizer(
            OPTIMIZERS["sgd"](model().parameters()), gradient_predivide_factor=2.0
        )
        adaptive = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model().parameters()), op=hvd.Adasum)
        adaptive.set_backward_passes_per_step(3)
        assert plain.process_set is adaptive.process_set is hvd.global_process_set
        return (
            (plain.op, plain.gradient_predivide_factor, plain.sparse_as_dense),
            (plain.backward_passes_per_step, adaptive.backward_passes_per_step),
        )

    assert on_ranks(2, program) == [((hvd.Average, 2.0, False), (1, 3))] * 2


@pytest.mark.parametrize("first", [hvd.Average, hvd.Adasum])
def test_an_optimizer_that_is_made_distributed_again_begins_anew(first):
    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        once = hvd.DistributedOptimizer(optimizer, [("w", weight)], op=first)
        again = hvd.DistributedOptimizer(once, [("w", weight)], op=hvd.Sum)
        assert isinstance(again, _DistributedOptimizer)
        for _ in range(2):
            again.zero_grad()
            (weight * (1 + hvd.rank())).sum().backward()
            again.step()
        return weight.item(), again.op

    assert on_ranks(2, program) == [(-6.0, hvd.Sum)] * 2


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_are_optimizers_of_the_own_class(op, copied):
    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](net.parameters()), op=op)
        loss_of(net, *batch(0)).backward()
        optimizer.step()
        other = copied(optimizer)
        assert type(other) is torch.optim.SGD
        other.zero_grad()
        other.step()
        return len(other.state_dict()["state"]), optimizer.state_dict().keys()

    expected = (4, {"state": 0, "param_groups": 0}.keys())
    assert on_ranks(2, program) == [expected] * 2


class Demanding(torch.optim.SGD):
    """With methods as programs write them."""

    def step(self, closure, scale=1.0):
        for group in self.param_groups:
            group["lr"] = scale
        return super().step(closure)

    def zero_grad(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def state_dict(self, extra=None):
        return {**super().state_dict(), "extra": extra}

    def load_state_dict(self, state_dict, strict=True):
        assert not strict
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_methods_take_what_those_of_the_own_class_take(op):
    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(Demanding([weight], lr=1.0), op=op)

        def closure():
            optimizer.zero_grad()
            loss = (weight * 2).sum()
            loss.backward()
            return loss

        closure()
        optimizer.step(None, 0.5)
        found = [weight.item(), optimizer.step(closure, scale=2.0).item(), weight.item()]
        optimizer.step(closure=closure)
        state = optimizer.state_dict(extra=3)
        optimizer.load_state_dict(state, strict=False)
        return [*found, weight.item(), state["extra"]]

    assert on_ranks(2, program) == [[-1.0, -2.0, -5.0, -7.0, 3]] * 2
