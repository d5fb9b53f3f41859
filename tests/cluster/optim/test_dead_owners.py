"""An owner dies in the middle of clipping, or of a step: all others have stepped, or none has."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from lockstitch import autograd, rpc
from lockstitch.errors import PeerDiedError
from lockstitch.optim import DistributedOptimizer, GradScaler, clip_grad_norm_, parameters_of
from lockstitch.testing.cluster import LocalCluster
from lockstitch.testing.faults import Faults
from lockstitch.wire.messages import Call

NAMES = ("trainer", "ps1", "ps2", "ps3")


class Training:
    """One step of a training over three owners, of which "ps2" will die."""

    def __init__(self, cluster: LocalCluster, faults: Faults) -> None:
        self.cluster, self.faults = cluster, faults
        self.modules = [rpc.remote(name, nn.Linear, (2, 2)) for name in NAMES[1:]]
        references = [each for module in self.modules for each in parameters_of(module)]
        self.optimizer = DistributedOptimizer(optim.SGD, references, lr=0.5)
        self.scaler = GradScaler(init_scale=4.0)
        self.before = {name: self.weight(name) for name in ("ps1", "ps3")}

    def weight(self, name: str) -> torch.Tensor:
        return _weight_of(self.modules[NAMES.index(name) - 1])

    def go_backward(self, context_id: int) -> None:
        x = torch.ones(1, 2)
        loss = sum(module.rpc_sync().forward(x).sum() for module in self.modules)
        autograd.backward(context_id, [self.scaler.scale(loss)])

    def kill_at_call(self, nth: int) -> None:
        """Has "ps2" die when it gets its `nth` call from now on."""
        self.faults.kill("ps2", after=Call, nth=nth, to="ps2")

    def stepped(self) -> set[str]:
        return {
            name for name, old in self.before.items() if not torch.equal(self.weight(name), old)
        }


def _weight_of(module) -> torch.Tensor:
    return rpc.rpc_sync(module.owner(), _weight, (module,))


def _weight(module) -> torch.Tensor:
    return module.local_value().weight.detach().clone()


@pytest.fixture
def training():
    faults = Faults()
    with LocalCluster(NAMES, faults=faults) as cluster, cluster["trainer"].active():
        yield Training(cluster, faults)


def test_before_norms_are_told_nothing_is_changed(training) -> None:
    with autograd.context() as context_id:
        training.go_backward(context_id)
        training.kill_at_call(1)
        with pytest.raises(PeerDiedError, match="'ps2' .*no gradient was changed, and no owner"):
            clip_grad_norm_(training.optimizer, context_id, 0.1)
    assert training.stepped() == set()


def test_while_gradients_are_scaled_it_says_whose_are(training) -> None:
    with autograd.context() as context_id:
        training.go_backward(context_id)
        training.kill_at_call(2)
        with pytest.raises(
            PeerDiedError, match="; clipped: 'ps1', 'ps3'; .*; no owner has stepped"
        ):
            clip_grad_norm_(training.optimizer, context_id, 0.1)
    assert training.stepped() == set()


def test_while_gradients_are_unscaled_nobody_steps(training) -> None:
    with autograd.context() as context_id:
        training.go_backward(context_id)
        training.kill_at_call(1)
        with pytest.raises(PeerDiedError, match="unscaled: 'ps1', 'ps3'; .*; no owner has stepped"):
            training.scaler.step(training.optimizer, context_id)
        with pytest.raises(RuntimeError, match="begin a new context"):
            training.scaler.step(training.optimizer, context_id)
    assert training.stepped() == set()


def test_the_scaler_goes_on_with_the_owners_that_are_left(training) -> None:
    with autograd.context() as context_id:
        training.go_backward(context_id)
        training.kill_at_call(1)
        with pytest.raises(PeerDiedError, match="no owner has stepped"):
            training.scaler.step(training.optimizer, context_id)
    del training.modules[1]
    references = [each for module in training.modules for each in parameters_of(module)]
    left = DistributedOptimizer(optim.SGD, references, lr=0.5)
    with autograd.context() as other, pytest.raises(PeerDiedError, match="no owner has stepped"):
        training.scaler.step(training.optimizer, other)
    with autograd.context() as context_id:
        training.go_backward(context_id)
        training.scaler.step(left, context_id)
        training.scaler.update()
    assert not torch.equal(_weight_of(training.modules[1]), training.before["ps3"])


def test_between_unscaling_and_the_step_nobody_steps(training) -> None:
    with autograd.context() as context_id:
        training.go_backward(context_id)
        training.scaler.unscale_(training.optimizer, context_id)
        training.cluster.kill("ps2")
        with pytest.raises(PeerDiedError, match="; no owner has stepped"):
            training.scaler.step(training.optimizer, context_id)
    assert training.stepped() == set()


def test_within_the_step_all_others_step(training) -> None:
    with autograd.context() as context_id:
        training.go_backward(context_id)
        training.kill_at_call(2)
        with pytest.raises(PeerDiedError, match="; stepped: 'ps1', 'ps3'; not, or not known"):
            training.scaler.step(training.optimizer, context_id)
    assert training.stepped() == {"ps1", "ps3"}


def test_within_a_bare_step_too(training) -> None:
    with autograd.context() as context_id:
        training.go_backward(context_id)
        training.kill_at_call(1)
        with pytest.raises(PeerDiedError, match="; stepped: 'ps1', 'ps3'; not, or not known"):
            training.optimizer.step(context_id)
    assert training.stepped() == {"ps1", "ps3"}
