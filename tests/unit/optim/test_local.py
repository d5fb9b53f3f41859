"""A local optimizer equals the plain one, and no graph in flight hears of its steps."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import optim

from lockstitch.optim.groups import Change
from lockstitch.optim.local import LocalOptimizer


def local(optimizer_class, parameters, *args, **kwargs):
    return LocalOptimizer(optimizer_class, parameters, threading.Lock(), *args, **kwargs)


def parameter(seed: int = 0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.rand(3, 3, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (optim.Adagrad, {"lr": 0.05}),
        (optim.Adam, {"lr": 1e-2, "amsgrad": True}),
        (optim.AdamW, {"lr": 0.05, "amsgrad": True}),
        (optim.SGD, {"lr": 0.05}),
        (optim.SGD, {"lr": 1e-3, "momentum": 1, "weight_decay": 1, "nesterov": True}),
        (optim.Adadelta, {"rho": 0.95}),
        (optim.RMSprop, {"lr": 0.05}),
        (optim.Adamax, {"lr": 0.05}),
        (optim.Rprop, {"lr": 0.05}),
    ],
)
def test_steps_equal_those_of_the_plain_optimizer(optimizer_class, options) -> None:
    ours, plain = parameter(), parameter()
    local_optimizer = local(optimizer_class, [ours], **options)
    plain_optimizer = optimizer_class([plain], **options)
    for step in range(3):
        gradient = torch.full((3, 3), 0.5 + step)
        local_optimizer.step({ours: gradient.clone()})
        plain.grad = gradient
        plain_optimizer.step()
    assert torch.equal(ours, plain)


def test_a_graph_that_saved_a_parameter_survives_a_step() -> None:
    weight = parameter()
    optimizer = local(optim.SGD, [weight], lr=0.1)
    features = torch.rand(2, 3, requires_grad=True)
    loss = (features @ weight).sum()

    optimizer.step({weight: torch.ones(3, 3)})
    loss.backward()

    # Hogwild: the backward pass multiplies by the weight of now.
    assert torch.equal(features.grad, (torch.ones(2, 3) @ weight.detach().t()))
    assert torch.allclose(weight.grad, features.detach().t() @ torch.ones(2, 3))


def test_the_plain_optimizer_would_have_broken_that_graph() -> None:
    weight = parameter()
    optimizer = optim.SGD([weight], lr=0.1)
    loss = (torch.rand(2, 3, requires_grad=True) @ weight).sum()
    weight.grad = torch.ones(3, 3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_without_gradient_are_left_alone() -> None:
    with_gradient, without = parameter(1), parameter(2)
    before = without.detach().clone()
    optimizer = local(optim.SGD, [with_gradient, without], lr=0.1, momentum=0.9)
    optimizer.step({with_gradient: torch.ones(3, 3), without: torch.ones(3, 3)})
    once = without.detach().clone()
    assert not torch.equal(once, before)

    optimizer.step({with_gradient: torch.ones(3, 3)})

    assert torch.equal(without, once)


def test_the_gradient_that_the_program_keeps_on_a_parameter_is_not_touched() -> None:
    weight = parameter()
    weight.grad = torch.full((3, 3), 7.0)
    local(optim.SGD, [weight], lr=0.1).step({weight: torch.ones(3, 3)})
    assert torch.equal(weight.grad, torch.full((3, 3), 7.0))


def test_a_parameter_that_got_another_storage_is_still_updated() -> None:
    weight = parameter()
    optimizer = local(optim.SGD, [weight], lr=1.0)
    weight.data = torch.zeros(3, 3)
    optimizer.step({weight: torch.ones(3, 3)})
    assert torch.equal(weight, torch.full((3, 3), -1.0))


class Replacing(optim.Optimizer):
    """Puts new storage into the parameters instead of writing into theirs."""

    def __init__(self, params) -> None:
        super().__init__(params, {})

    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - p.grad


def test_an_optimizer_that_replaces_the_storage_is_followed() -> None:
    weight = torch.nn.Parameter(torch.zeros(3, 3))
    optimizer = local(Replacing, [weight])
    for _ in range(2):
        optimizer.step({weight: torch.ones(3, 3)})
    assert torch.equal(weight, torch.full((3, 3), -2.0))


class Failing(optim.Optimizer):
    def __init__(self, params) -> None:
        super().__init__(params, {})

    def step(self, closure=None) -> None:
        raise ValueError("no step today")


def test_a_failing_step_releases_lock_and_gradients() -> None:
    lock = threading.Lock()
    weight = parameter()
    optimizer = LocalOptimizer(Failing, [weight], lock)
    with pytest.raises(ValueError, match="no step today"):
        optimizer.step({weight: torch.ones(3, 3)})
    assert not lock.locked()
    assert optimizer.optim.param_groups[0]["params"][0].grad is None


def test_what_is_not_a_leaf_tensor_is_refused_in_torchs_words() -> None:
    with pytest.raises(ValueError, match="can't optimize a non-leaf Tensor"):
        local(optim.SGD, [parameter() * 2], lr=0.1)
    with pytest.raises(TypeError, match="can only optimize Tensors"):
        local(optim.SGD, ["weight"], lr=0.1)


def test_steps_on_shared_parameters_lose_no_update() -> None:
    weight, lock = torch.nn.Parameter(torch.zeros(100)), threading.Lock()
    optimizers = [LocalOptimizer(optim.SGD, [weight], lock, lr=1.0) for _ in range(4)]

    def train(optimizer: LocalOptimizer) -> None:
        for _ in range(50):
            optimizer.step({weight: torch.full((100,), -1.0)})

    threads = [threading.Thread(target=train, args=(o,)) for o in optimizers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(weight, torch.full((100,), 200.0))


def test_a_parameter_that_is_given_twice_has_one_state() -> None:
    ours, plain = parameter(), parameter()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        local_optimizer = local(optim.SGD, [ours, ours], lr=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        plain_optimizer = optim.SGD([plain, plain], lr=0.1, momentum=0.9)
    for _ in range(3):
        local_optimizer.step({ours: torch.ones(3, 3)})
        plain.grad = torch.ones(3, 3)
        plain_optimizer.step()
    assert torch.equal(ours, plain)
    assert local_optimizer.parameters == [ours, ours]


def test_groups_come_and_go() -> None:
    first, second = parameter(1), parameter(2)
    optimizer = local(optim.SGD, [{"params": [first], "lr": 0.5}], lr=0.1)
    optimizer.add_param_group({"params": [second], "momentum": 0.9})
    assert [group["lr"] for group in optimizer.options()] == [0.5, 0.1]
    assert optimizer.parameters == [first, second]
    with pytest.raises(ValueError, match="appear in more than one parameter group"):
        optimizer.add_param_group({"params": [first]})
    with pytest.raises(ValueError, match="non-leaf"):
        optimizer.add_param_group({"params": [first * 2]})
    optimizer.remove_last_group()
    before = second.detach().clone()
    optimizer.step({first: torch.ones(3, 3), second: torch.ones(3, 3)})
    assert torch.equal(second, before)
    optimizer.add_param_group({"params": [second]})
    assert optimizer.parameters == [first, second]


def test_options_are_assigned_removed_and_written_into_where_they_are_tensors() -> None:
    optimizer = local(optim.Adam, [parameter()], lr=torch.tensor(0.5))
    (group,) = optimizer.optim.param_groups
    rate = group["lr"]
    optimizer.change({0: Change({"lr": torch.tensor(0.25), "initial_lr": 1.0})})
    assert group["lr"] is rate
    assert rate == 0.25
    optimizer.change({0: Change({"lr": 0.1}, ("initial_lr", "nothing"))})
    assert group["lr"] == 0.1
    assert "initial_lr" not in group


class Counting(optim.SGD):
    """Keeps its own count in its group, as some optimizers do."""

    def step(self, closure=None) -> None:
        super().step()
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1


def test_a_step_tells_which_options_it_has_changed() -> None:
    assert local(optim.Adam, [parameter()]).step({}) == {}
    optimizer = local(Counting, [parameter()], lr=0.1)
    assert [optimizer.step({}), optimizer.step({})] == [{0: {"count": 1}}, {0: {"count": 2}}]


def test_optimizer_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(TypeError, match=r"LBFGS.step needs a closure"):
        local(optim.LBFGS, [parameter()])
