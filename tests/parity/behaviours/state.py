"""Buffers, attributes and modes."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.parity.behaviours.pieces import Net, Of, batch, gradients, own, same, step


@own
def updates_of_buffers_are_slot_0s(wrap):
    module = nn.BatchNorm1d(4)
    reference, x = copy.deepcopy(module), batch(8)
    model = wrap(module)
    for _ in range(3):
        model(x)
        reference(x[:4])
    torch.testing.assert_close(module.state_dict(), reference.state_dict())


@own
def buffers_that_training_wrote_are_used_in_evaluation(wrap):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), batch()
    model = wrap(module)
    model(x)
    module.eval()
    torch.testing.assert_close(model(x), module(x))


@same
def buffers_changed_in_place_and_replaced(wrap):
    module = Of(lambda self, x: self.linear(x) * self.scale)
    module.register_buffer("scale", torch.ones(3))
    model, x = wrap(module), batch()
    results = [model(x)]
    module.scale.add_(1)
    results.append(model(x))
    module.scale = torch.tensor([1.0, 2, 3])
    results.append(model(x))
    module.scale = None
    module.function = lambda self, x: self.linear(x) * (1 if self.scale is None else 0)
    results.append(model(x))
    return results


@same
def what_was_replaced_since_counts_as_it_was(wrap):
    module = Of(lambda self, x: self.linear(x) * self.scale * self.fixed)
    module.register_buffer("scale", torch.full((3,), 2.0))
    module.fixed = nn.Parameter(torch.full((3,), 3.0), requires_grad=False)
    model = wrap(module)
    earlier = model(batch())
    module.scale = torch.full((3,), 5.0)
    module.fixed = nn.Parameter(torch.full((3,), 7.0), requires_grad=False)
    later = model(batch())
    earlier.sum().backward()
    before = [grad.clone() for grad in gradients(module.linear)]
    later.sum().backward()
    return before, gradients(module.linear)


@same
def a_buffer_written_by_the_module(wrap):
    def count(self, x):
        self.calls += 1
        return self.linear(x) * self.calls

    module = Of(count)
    module.register_buffer("calls", torch.zeros(()))
    model, x = wrap(module), batch()
    return [model(x) for _ in range(3)], module.calls


@same
def training_and_evaluation(wrap):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0)), batch()
    model = wrap(module)
    results = [model(x)]
    module.eval()
    results.append(model(x))
    module.train()
    return [*results, model(x)]


@same
def attributes_changed_between_calls(wrap):
    module = Of(lambda self, x: self.linear(x) * self.factor + sum(self.terms), factor=1, terms=[1])
    model, x = wrap(module), batch()
    results = [model(x)]
    module.factor = 2.5
    results.append(model(x))
    module.terms.append(3)
    results.append(model(x))
    module.terms = [7, 8]
    results.append(model(x))
    module.factor = torch.tensor(3.0)
    results.append(model(x))
    return results


@same
def attributes_changed_by_the_module(wrap):
    def count(self, x):
        self.calls += 1
        self.last = self.linear(x)
        return self.last * self.calls

    module = Of(count, calls=0, last=None)
    model = wrap(module)
    results = [step(model, module, batch()) for _ in range(4)]
    assert module.calls == 4
    return results


@same
def a_state_that_is_set_back_between_calls(wrap):
    def remember(self, x):
        self.steps += 1
        self.state = self.state + self.linear(x)
        self.table["state"] = self.table["state"] * 0.5 + self.linear(x)
        self.seen.append(self.linear(x))
        return self.state * self.steps + self.table["state"] + sum(self.seen)

    module = Of(remember, state=0.0, table={"state": 0.0}, seen=[], steps=0)
    model = wrap(module)
    results = []
    for _ in range(3):
        results.append(step(model, module, batch()))
        module.state, module.table["state"], module.steps = 0.0, 0.0, 0
        module.seen.clear()
    return results


@same
def a_state_that_is_carried_on(wrap):
    def remember(self, x):
        self.state = self.linear(x) if self.state is None else self.state + self.linear(x)
        return self.state

    model = wrap(Of(remember, state=None))
    with torch.no_grad():
        return [model(batch()) for _ in range(4)]


@same
def submodules_replaced_and_added(wrap):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), batch()
    model = wrap(module)
    results = [model(x)]
    module[1] = nn.ReLU()
    results.append(model(x))
    module.append(nn.Linear(4, 2))
    return [*results, step(model, module, x)]


@same
def modules_and_parameters_in_plain_lists(wrap):
    def through_lists(self, x):
        return self.layers[0](x) + self.weights["bias"]

    module = Of(through_lists)
    module.layers, module.weights = [module.linear], {"bias": module.linear.bias}
    return step(wrap(module), module, batch())


@same
def without_gradients(wrap):
    model = wrap(Net())
    with torch.no_grad():
        output = model(batch())
    assert not output.requires_grad
    return output


def _modes():
    yield torch.inference_mode()
    yield torch.no_grad()
    yield torch.autocast("cpu", dtype=torch.bfloat16)
    yield torch.device("cpu")


@same
def other_modes_before_training_and_between(wrap):
    """What a trainer does that checks itself first: evaluation, then training."""
    results = []
    for mode in _modes():
        module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6).eval(), nn.Linear(6, 3))
        module[2].requires_grad_(requires_grad=False)
        module[1].register_buffer("offset", torch.zeros(6))
        model = wrap(module)
        for factor in (2.0, 3.0):
            with mode:
                model(batch())
                module[1].running_mean.add_(factor)
                model(batch())
            module[2].weight.mul_(factor)
            x = batch(requires_grad=True)
            results.append([*step(model, module, x), x.grad])
    return results


@same
def in_inference_mode(wrap):
    model = wrap(Net())
    with torch.inference_mode():
        output = model(batch())
        assert output.is_inference()
    return output


@same
def autocast_with_its_dtype(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        output = model(x)
    assert output.dtype is torch.bfloat16
    output.float().sum().backward()
    return output, [grad.bfloat16() for grad in gradients(module)]  # that is how exact they are


@same
def default_dtype(wrap):
    model = wrap(Of(lambda self, x: self.linear(x).double() + torch.zeros(3)))
    torch.set_default_dtype(torch.float64)
    try:
        double = model(batch(dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)
    return double, model(batch())


@same
def gradients_turned_off_within(wrap):
    def half(self, x):
        with torch.no_grad():
            fixed = self.linear(x)
        return self.linear(x) + fixed

    module = Of(half)
    return step(wrap(module), module, batch())
