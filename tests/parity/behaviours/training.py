"""Steps of training, and what programs do in them."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from tests.parity.behaviours.pieces import Net, Of, batch, gradients, own, same, step


def train(wrap, module, optimizer, steps=4):
    model = wrap(module)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch()).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, list(module.parameters())


@same
def training_with_sgd(wrap):
    module = Net()
    return train(wrap, module, torch.optim.SGD(module.parameters(), 0.1, momentum=0.9))


@same
def training_with_adam(wrap):
    module = Net()
    return train(wrap, module, torch.optim.Adam(module.parameters(), 0.01))


@same
def an_optimizer_made_of_the_wrapper(wrap):
    module = Net()
    model = wrap(module)
    return train(lambda _: model, module, torch.optim.SGD(model.parameters(), 0.1))


@same
def gradients_accumulate(wrap):
    module = Net()
    model = wrap(module)
    step(model, module, batch())
    return step(model, module, batch())


@same
def slots_closed_before_the_end_of_a_block_without_sync(wrap):
    module = Net()
    model = wrap(module)
    with model.no_sync() if wrap.is_parallel else contextlib.nullcontext():
        model(batch()).sum().backward()
        if wrap.is_parallel:
            model.close()
    return gradients(module)


@same
def gradients_zeroed_in_place(wrap):
    module = Net()
    model = wrap(module)
    step(model, module, batch())
    module.zero_grad(set_to_none=False)
    return step(model, module, batch())


@same
def two_forward_passes_and_one_backward(wrap):
    module = Net()
    model = wrap(module)
    (model(batch()).sum() * model(batch()).pow(2).sum()).backward()
    return gradients(module)


@same
def a_pass_through_its_own_output(wrap):
    module = Of(lambda self, x: self.linear(x) @ self.linear.weight)
    model = wrap(module)
    model(model(batch())).pow(2).sum().backward()
    return gradients(module)


@same
def forward_passes_in_flight_backward_in_any_order(wrap):
    module = Net()
    model = wrap(module)
    outputs = [model(batch()) for _ in range(3)]
    for i in (1, 0, 2):
        outputs[i].pow(2).sum().backward()
    return gradients(module)


@same
def a_forward_pass_without_backward(wrap):
    module = Net()
    model = wrap(module)
    model(batch())
    return step(model, module, batch())


@same
def graph_retained(wrap):
    module = Net()
    loss = wrap(module)(batch()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return gradients(module)


@same
def gradients_by_autograd_grad(wrap):
    module, x = Net(), batch(requires_grad=True)
    output = wrap(module)(x)
    return torch.autograd.grad(output.sum(), [x, *module.parameters()])


@same
def gradients_of_some_by_autograd_grad(wrap):
    module, x = Net(), batch(requires_grad=True)
    return torch.autograd.grad(wrap(module)(x).sum(), [x])


@same
def gradients_of_gradients(wrap):
    module, x = Net(), batch(requires_grad=True)
    (grad,) = torch.autograd.grad(wrap(module)(x).pow(2).sum(), x, create_graph=True)
    grad.pow(2).sum().backward()
    return grad, x.grad, gradients(module)


@same
def a_penalty_on_gradients_reaches_what_it_depends_on_and_no_more(wrap):
    module, x = nn.Linear(4, 1), batch(requires_grad=True)
    (gradient,) = torch.autograd.grad(wrap(module)(x).sum(), x, create_graph=True)
    gradient.pow(2).mean().backward()
    assert module.bias.grad is None
    return gradient, module.weight.grad


@same
def a_penalty_on_gradients_after_steps_of_training(wrap):
    """Long enough for passes to be known to be short."""
    module = Of(lambda self, x: self.linear(x).tanh(), unused=nn.Linear(2, 2))
    model, results = wrap(module), []
    for _ in range(20):
        module.zero_grad()
        x = batch(requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()
        results.append([gradient, *gradients(module.linear)])
        assert module.unused.weight.grad is None
    return results


@same
def what_is_not_differentiated_in_the_second_place(wrap):
    module = Of(lambda self, x: (self.linear(x), self.other(x)), other=nn.Linear(4, 3))
    x = batch(requires_grad=True)
    one, _ = wrap(module)(x)
    found = torch.autograd.grad(
        one.pow(3).sum(), [x, *module.parameters()], create_graph=True, allow_unused=True
    )
    assert found[3] is found[4] is None
    (found[0].sum() + found[1].pow(2).sum()).backward()
    assert module.other.weight.grad is None
    return [each for each in found if each is not None], x.grad, gradients(module.linear)


@same
def gradients_of_the_third_order(wrap):
    module, x = Of(lambda self, x: self.linear(x).tanh()), batch(requires_grad=True)
    value, results = wrap(module)(x).sum(), []
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        value = gradient.pow(2).sum()
        results.append(gradient)
    value.backward()
    return results, x.grad, module.linear.weight.grad


def _changes(module):
    yield module.eval
    yield lambda: setattr(module, "fixed", nn.Parameter(torch.full((3,), 9.0), requires_grad=False))
    yield lambda: setattr(module, "shift", torch.full((3,), 7.0))
    yield lambda: setattr(module, "factor", 5)
    yield lambda: setattr(module.linear, "weight", nn.Parameter(torch.ones(3, 4)))


@same
def the_module_as_it_was_counts_for_gradients_of_gradients(wrap):
    def forward(self, x):
        once = self.linear(x).tanh() * self.fixed + self.shift * x.sum(1, keepdim=True)
        return once * (self.factor if self.training else 11)

    results = []
    for i in range(5):
        module = Of(forward, factor=2)
        module.fixed = nn.Parameter(torch.full((3,), 3.0), requires_grad=False)
        module.register_buffer("shift", torch.full((3,), 2.0))
        model = wrap(module)
        for calls_again in (False, True):
            module.train()
            parameters, x = list(module.linear.parameters()), batch(requires_grad=True)
            value = model(x).pow(2).sum()
            list(_changes(module))[i]()
            if calls_again:
                model(batch())
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            found = torch.autograd.grad(gradient.pow(2).sum(), [x, *parameters], allow_unused=True)
            results.append([gradient, *[each for each in found if each is not None]])
    return results


@same
def weights_under_a_parametrization(wrap):
    module = nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Tanh())
    return step(wrap(module), module, batch())


@same
def recurrent_networks(wrap):
    module = nn.LSTM(4, 5, num_layers=2, batch_first=True)
    output, _states = wrap(module)(torch.randn(6, 3, 4))
    output.sum().backward()
    return output, gradients(module)


@same
def attention(wrap):
    module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return step(wrap(module), module, torch.randn(4, 3, 8))


@same
def checkpointed_parts(wrap):
    module = Of(lambda self, x: checkpoint(self.linear, x, use_reentrant=False).tanh())
    return step(wrap(module), module, batch())


@same
def checkpointed_parts_of_the_older_kind(wrap):
    def through(self, x):
        return checkpoint(self.linear, x, use_reentrant=True).tanh() + self.linear.bias

    module, x = Of(through), batch(requires_grad=True)
    return step(wrap(module), module, x), x.grad


@own
def checkpointed_parts_that_draw_random_numbers_draw_the_same_again(wrap):
    drop = nn.Dropout(0.5)
    module = Of(lambda self, x: checkpoint(drop, x + 0 * self.linear.bias.sum(), **self.options))
    for is_reentrant in (False, True):
        module.options = {"use_reentrant": is_reentrant}
        model = wrap(module)
        for _ in range(3):
            x = torch.ones(64, 4, requires_grad=True)
            output = model(x)
            output.sum().backward()
            torch.testing.assert_close(x.grad, output.detach())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


@same
def functions_of_ones_own(wrap):
    module = Of(lambda self, x: Cube.apply(self.linear(x)))
    return step(wrap(module), module, batch())


@same
def inputs_changed_in_place(wrap):
    module = Of(lambda self, x: self.linear(x.mul_(2)))
    return step(wrap(module), module, batch())


@same
def the_loss_inside(wrap):
    def loss(self, x, targets):
        return nn.functional.cross_entropy(self.linear(x), targets, reduction="none")

    module = Of(loss)
    return step(wrap(module), module, batch(), torch.arange(6) % 3)


@own
def the_mean_loss_inside(wrap):
    def loss(self, x, targets):
        return nn.functional.cross_entropy(self.linear(x), targets)[None]

    module, x, targets = Of(loss), batch(), torch.arange(6) % 3
    wrap(module)(x, targets).mean().backward()
    grads = gradients(module)
    module.zero_grad()
    module(x, targets).backward()
    torch.testing.assert_close(grads, gradients(module))


@own
def a_second_backward_raises(wrap):
    loss = wrap(Net())(batch()).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@own
def gradients_stay_in_slots_until_the_end_of_no_sync(wrap):
    module, xs = Net(), [batch(), batch(), batch()]
    model = wrap(module)
    with model.no_sync():
        for x in xs[:2]:
            model(x).pow(2).sum().backward()
        own_part = module.first.weight.grad.clone()
    assert not torch.equal(own_part, module.first.weight.grad)
    model(xs[2]).pow(2).sum().backward()
    grads = gradients(module)
    module.zero_grad()
    for x in xs:
        module(x).pow(2).sum().backward()
    torch.testing.assert_close(grads, gradients(module))


@own
def gradients_of_a_forward_pass_outside_no_sync_are_added_at_once(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    output = model(x)
    with model.no_sync():
        output.pow(2).sum().backward()
        grads = gradients(module)
    module.zero_grad()
    module(x).pow(2).sum().backward()
    torch.testing.assert_close(grads, gradients(module))
