"""What a module does, as programs that can run on it plainly and on slots.

A behaviour is a function of `wrap`, which makes of a module what the program calls: the module
itself, or a `DataParallel` of it. It returns what can be compared, or asserts what has to hold.
`tests/parity/test_data_parallel.py` runs all of them on each kind of slots.
"""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from lockstitch.nn import DataParallel, Replicate, Shard, data_parallel

SAME = []
"""Behaviours that are the plain module's: what they return is compared."""
OWN = []
"""Behaviours that are told by assertions."""


def same(behaviour):
    SAME.append(behaviour)
    return behaviour


def own(behaviour):
    OWN.append(behaviour)
    return behaviour


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Of(nn.Module):
    """A module with a linear layer, whose forward pass is a function of both and the inputs."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def batch(rows=6, columns=4, **options):
    return torch.randn(rows, columns, **options)


def gradients(module):
    return [p.grad for p in module.parameters()]


def step(model, module, *args, **kwargs):
    """Outputs and gradients of one step."""
    output = model(*args, **kwargs)
    total(output).backward()
    return output, gradients(module)


def total(thing):
    if isinstance(thing, torch.Tensor):
        return thing.abs().pow(2).sum() if thing.requires_grad else torch.zeros(())
    values = thing.values() if isinstance(thing, dict) else thing
    return sum((total(each) for each in values), torch.zeros(()))


# ------------------------------------------------------------------------------ inputs, outputs


@same
def values_and_gradients(wrap):
    module = Net()
    return step(wrap(module), module, batch())


@same
def gradient_of_the_input(wrap):
    module, x = Net(), batch(requires_grad=True)
    return step(wrap(module), module, x), x.grad


@same
def gradient_of_what_came_before(wrap):
    before, module, x = nn.Linear(4, 4), Net(), batch()
    return step(lambda x: wrap(module)(before(x)), module, x), gradients(before)


@same
def batch_that_cannot_be_halved(wrap):
    module = Net()
    return step(wrap(module), module, batch(7))


@same
def batch_of_one_row(wrap):
    module = Net()
    return step(wrap(module), module, batch(1))


@same
def batch_without_rows(wrap):
    module = Net()
    return step(wrap(module), module, batch(0))


@same
def named_arguments(wrap):
    module = Of(lambda self, x, *, scale: self.linear(x) * scale)
    return step(wrap(module), module, batch(), scale=batch(6, 1))


@same
def arguments_that_are_no_tensors(wrap):
    module = Of(lambda self, x, power, *, name=None: self.linear(x) ** power + len(name))
    return step(wrap(module), module, batch(), 2, name="abc")


@same
def nested_containers(wrap):
    module = Of(lambda self, d: self.linear(d["a"][0]) + d["a"][1]["b"] * d["c"])
    return step(wrap(module), module, {"a": [batch(), {"b": batch(6, 3)}], "c": 2})


@same
def gradient_within_containers(wrap):
    module, x = Of(lambda self, d: self.linear(d["x"][0])), batch(requires_grad=True)
    return step(wrap(module), module, {"x": (x,)}), x.grad


Pair = namedtuple("Pair", ["left", "right"])


@same
def named_tuples(wrap):
    module = Of(lambda self, p: Pair(self.linear(p.left), p.right + 1))
    output, grads = step(wrap(module), module, Pair(batch(), batch()))
    assert type(output) is Pair
    return output, grads


@same
def outputs_of_a_class_made_in_a_function(wrap):
    kind = namedtuple("Result", "logits hidden")
    model = wrap(Of(lambda self, x: kind(self.linear(x), None)))
    output = model(batch())
    assert type(output) is kind
    return output.logits


@same
def ordered_dicts(wrap):
    module = Of(lambda self, d: OrderedDict(b=self.linear(d["x"]), a=d["x"]))
    output, grads = step(wrap(module), module, OrderedDict(x=batch()))
    assert list(output) == ["b", "a"]
    return list(output.values()), grads


@dataclass
class Record:
    x: torch.Tensor
    scale: float


@same
def dataclasses_in_and_out(wrap):
    module = Of(lambda self, r: Record(self.linear(r.x) * r.scale, r.scale))
    output = wrap(module)(Record(batch(), 0.5))
    output.x.sum().backward()
    return output.x, output.scale, gradients(module)


@same
def outputs_that_are_no_tensors(wrap):
    module = Of(lambda self, x: (self.linear(x), None, 3, "name"))
    output = wrap(module)(batch())
    output[0].sum().backward()
    return output, gradients(module)


@same
def outputs_without_gradient(wrap):
    module = Of(lambda self, x: (self.linear(x), self.linear(x).argmax(1), x.detach()))
    output = wrap(module)(batch())
    assert [each.requires_grad for each in output] == [True, False, False]
    output[0].sum().backward()
    return output, gradients(module)


@same
def one_of_two_outputs_used(wrap):
    module = Of(lambda self, x: (self.linear(x), self.linear(x).exp()))
    left, _right = wrap(module)(batch())
    left.sum().backward()
    return gradients(module)


@same
def outputs_of_which_some_rows_are_used(wrap):
    module = Net()
    output = wrap(module)(batch())
    output[:2].sum().backward()
    return output, gradients(module)


@same
def an_input_returned(wrap):
    module, x = Of(lambda self, x: (x, self.linear(x))), batch(requires_grad=True)
    return step(wrap(module), module, x), x.grad


@same
def one_tensor_returned_twice(wrap):
    module = Of(lambda self, x: [self.linear(x)] * 2)
    return step(wrap(module), module, batch())


@same
def another_dimension(wrap):
    module = Of(lambda self, x: self.linear(x.transpose(0, 1)).transpose(0, 1))
    return step(wrap(module, dim=1), module, torch.randn(2, 6, 4))


@same
def inputs_that_are_not_contiguous(wrap):
    module = Net()
    return step(wrap(module), module, batch(4, 6).t())


@same
def channels_last(wrap):
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    output, grads = step(wrap(module), module, x)
    assert grads[0].is_contiguous(memory_format=torch.channels_last)
    return output, grads


@same
def integers_and_booleans(wrap):
    module = Of(lambda self, x, i, b: (self.linear(x) * b[:, None], i + 1, ~b))
    i, b = torch.arange(6), torch.arange(6) % 2 == 0
    return step(wrap(module), module, batch(), i, b)


@same
def complex_numbers(wrap):
    module = Of(lambda self, x: x * self.factor, factor=nn.Parameter(batch(1, dtype=torch.cfloat)))
    output = wrap(module)(batch(dtype=torch.cfloat))
    output.abs().sum().backward()
    return output, module.factor.grad


@same
def half_precision(wrap):
    module = Net().to(torch.bfloat16)
    return step(wrap(module), module, batch(dtype=torch.bfloat16))


@same
def replicated_argument(wrap):
    module = Of(lambda self, x, table: self.linear(x) @ table)
    table = torch.randn(3, 5, requires_grad=True)
    given = Replicate(table) if wrap.is_parallel else table
    return step(wrap(module), module, batch(), given), table.grad


@same
def argument_sharded_elsewhere(wrap):
    module, other = Of(lambda self, x, y: self.linear(x) * y.t()), torch.randn(3, 6)
    given = Shard(other, 1) if wrap.is_parallel else other
    return step(wrap(module), module, batch(), given)


@own
def no_tensors_at_all(wrap):
    module = Of(lambda self: self.linear.weight.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scalars become a vector
        assert wrap(module)().shape == (1,)


@own
def scalars_become_a_vector(wrap):
    module, x = Of(lambda self, x: self.linear(x).sum()), batch()
    with pytest.warns(UserWarning, match="gather along dimension 0"):
        output = wrap(module)(x)
    expected = torch.stack([module(part) for part in x.chunk(2)])
    torch.testing.assert_close(output, expected)


@own
def unequal_batches_raise(wrap):
    model = wrap(Of(lambda self, x, y: self.linear(x)))
    with pytest.raises(ValueError, match="has 6 elements .* has 4"):
        model(batch(6), batch(4))


# ----------------------------------------------------------------------------------- parameters


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.decoder = nn.Linear(4, 5)
        self.decoder.weight = self.embedding.weight

    def forward(self, x):
        assert self.decoder.weight is self.embedding.weight
        return self.decoder(self.embedding(x))


@same
def tied_parameters(wrap):
    module = Tied()
    output, grads = step(wrap(module), module, torch.arange(6) % 5)
    assert len(grads) == 2
    return output, grads


@same
def shared_submodules(wrap):
    layer = nn.Linear(4, 4)
    module = nn.Sequential(layer, nn.Tanh(), layer)
    return step(wrap(module), module, batch())


@same
def parameters_that_share_memory(wrap):
    module = Net()
    flat = torch.randn(12)
    module.first.bias = nn.Parameter(flat[:6])
    module.second.bias = nn.Parameter(flat[6:9])
    return step(wrap(module), module, batch())


@same
def sparse_gradients(wrap):
    module = nn.Embedding(8, 3, sparse=True)
    output, (grad,) = step(wrap(module), module, torch.tensor([1, 2, 2, 7, 1, 0]))
    assert grad.is_sparse
    return output, grad.to_dense()


@same
def frozen_parameters(wrap):
    module = Net()
    module.first.weight.requires_grad_(requires_grad=False)
    return step(wrap(module), module, batch())


@same
def frozen_parameters_changed(wrap):
    module = Net()
    module.first.weight.requires_grad_(requires_grad=False)
    model, x = wrap(module), batch()
    before = model(x)
    module.first.weight.mul_(2)
    return before, model(x)


@same
def parameters_unfrozen_and_frozen_later(wrap):
    module, results = Net(), []
    model = wrap(module)
    for wants in (True, False, True):
        module.second.weight.requires_grad_(requires_grad=wants)
        module.zero_grad()
        results.append(step(model, module, batch()))
    return results


@same
def module_without_parameters(wrap):
    x = batch(requires_grad=True)
    output = wrap(nn.Tanh())(x)
    output.sum().backward()
    return output, x.grad


@same
def a_parameter_replaced(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    before = step(model, module, x)
    module.first.weight = nn.Parameter(batch(6, 4))
    module.zero_grad()
    return before, step(model, module, x)


@same
def a_state_dict_loaded(wrap):
    module, other, x = Net(), Net(), batch()
    model = wrap(module)
    before = model(x)
    module.load_state_dict(other.state_dict())
    middle = model(x)
    module.load_state_dict(Net().state_dict(), assign=True)
    return before, middle, model(x)


@same
def another_dtype_later(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    before = step(model, module, x)
    module.double()
    module.zero_grad()
    return before, step(model, module, x.double())


@same
def buffers_that_want_gradients(wrap):
    module = Of(lambda self, x: self.linear(x) * self.scale)
    module.register_buffer("scale", torch.randn(3, requires_grad=True))
    model = wrap(module)
    output, grads = step(model, module, batch())
    with torch.no_grad():
        module.scale.add_(1)
    return output, grads, module.scale.grad, model(batch())


@own
def unused_parameters_get_zeros(wrap):
    module = Of(lambda self, x: self.linear(x), unused=nn.Linear(2, 2))
    step(wrap(module), module, batch())
    assert module.unused.weight.grad.eq(0).all()


@own
def a_replica_lists_its_parameters(wrap):
    def check(self, x):
        assert isinstance(next(self.parameters()), nn.Parameter)
        assert len(list(self.named_parameters())) == 4
        assert [type(p) for p in self.several] == [nn.Parameter] * 2
        return self.linear(x)

    several = nn.ParameterList([torch.ones(1), torch.ones(2)])
    wrap(Of(check, several=several))(batch())


@own
def parameters_changed_before_backward_raise(wrap):
    module = Net()
    model = wrap(module)
    output = model(batch())
    with torch.no_grad():
        module.second.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    step(model, module, batch())


# ------------------------------------------------------------------------------------- training


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


# ---------------------------------------------------------------------------------------- hooks


@same
def hooks_of_parameters_see_the_sum_once(wrap):
    module, seen = Net(), []
    module.first.weight.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    result = step(wrap(module), module, batch())
    assert len(seen) == 1
    return result, seen


@same
def hooks_after_accumulation_run_once(wrap):
    module, seen = Net(), []
    module.second.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    result = step(wrap(module), module, batch())
    assert len(seen) == 1
    return result, seen


@same
def hooks_that_change_outputs_run_in_every_slot(wrap):
    module = Net()
    module.first.register_forward_hook(lambda _module, _args, output: output * 2)
    module.second.register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    module.second.register_full_backward_hook(lambda _module, grads, _outer: (grads[0] * 3,))
    return step(wrap(module), module, batch())


@same
def hooks_added_and_removed_later(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    before = model(x)
    handle = module.first.register_forward_hook(lambda _module, _args, output: -output)
    during = model(x)
    handle.remove()
    return before, during, model(x)


@same
def hooks_of_outputs_and_of_the_wrapper(wrap):
    module, seen = Net(), []
    model = wrap(module)
    handle = model.register_forward_hook(lambda _module, _args, output: output + 1)
    output = model(batch())
    handle.remove()
    output.register_hook(lambda grad: seen.append(grad))
    output.sum().backward()
    return output, gradients(module), seen


# --------------------------------------------------------------------- buffers, attributes, modes


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


# ------------------------------------------------------------------------------- random numbers


@own
def random_numbers_follow_the_seed(wrap):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.ones(64, 4)
    model = wrap(module)

    def run(seed):
        torch.manual_seed(seed)
        output = model(x)
        return output, torch.autograd.grad(output.sum(), list(module.parameters())), model(x)

    torch.testing.assert_close(run(1), run(1), rtol=0, atol=0)
    assert not torch.equal(run(1)[0], run(2)[0])
    first, second = run(1)[0].eq(0).chunk(2)
    assert not torch.equal(first, second)  # slots differ
    assert not torch.equal(run(1)[0], run(1)[2])  # and so do calls


@own
def the_caller_draws_what_slot_0_draws(wrap):
    module, x = nn.Dropout(0.5), torch.ones(8, 4)
    model = wrap(module)
    torch.manual_seed(5)
    output, after = model(x), torch.rand(3)
    torch.manual_seed(5)
    torch.testing.assert_close(module(x[:4]), output[:4])
    torch.testing.assert_close(torch.rand(3), after)


# --------------------------------------------------------------------------------------- errors


class CustomError(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):
        return type(self), (self.code, self.args[0])


def refusing(row, error):
    """A module that raises when a part begins with `row`."""

    def check(self, x):
        if x[0, 0].item() == row:
            raise error
        return self.linear(x)

    return Of(check)


@own
def exceptions_of_a_slot_keep_their_type(wrap):
    model, x = wrap(refusing(3, KeyError("here"))), torch.arange(6.0)[:, None].expand(6, 4)
    with pytest.raises(KeyError, match="here") as caught:
        model(x)
    assert "in slot 1 (" in str(caught.value.__cause__)
    assert "Original Traceback" in str(caught.value.__cause__)
    assert "in check" in str(caught.value.__cause__)
    assert model(x[:3]).shape == (3, 3)


@own
def exceptions_of_ones_own(wrap):
    model = wrap(refusing(3, CustomError(7, "mine")))
    with pytest.raises(CustomError, match="mine") as caught:
        model(torch.arange(6.0)[:, None].expand(6, 4))
    assert caught.value.code == 7


@own
def exceptions_of_slot_0_come_first(wrap):
    def fail(self, x):
        raise ValueError(f"at {x[0, 0].item():.0f}")

    model = wrap(Of(fail))
    for _ in range(2):
        with pytest.raises(ValueError, match="at 0"):
            model(torch.arange(6.0)[:, None].expand(6, 4))


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, refuses):
        ctx.refuses = refuses
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.refuses:
            raise LookupError("on the way back")
        return gradient, None


@own
def exceptions_on_the_way_back(wrap):
    module = Of(lambda self, x: Refuses.apply(self.linear(x), x[0, 0].item() == 3))
    model, x = wrap(module), torch.arange(6.0)[:, None].expand(6, 4)
    with pytest.raises(LookupError, match="on the way back"):
        model(x).sum().backward()
    module.zero_grad()
    step(model, module, x[:3])
    grads = gradients(module)
    module.zero_grad()
    step(module, module, x[:3])
    torch.testing.assert_close(grads, gradients(module))


@own
def exceptions_of_a_hook_leave_nothing_behind(wrap):
    module, x = Net(), batch()
    model = wrap(module)

    def fail(_grad):
        raise ArithmeticError("in a hook")

    handle = module.first.weight.register_hook(fail)
    with pytest.raises(ArithmeticError, match="in a hook"):
        model(x).sum().backward()
    handle.remove()
    module.zero_grad()
    _, grads = step(model, module, x)
    module.zero_grad()
    _, expected = step(module, module, x)
    torch.testing.assert_close(grads, expected)


@own
def uninitialized_parameters_raise(wrap):
    module = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(RuntimeError, match="uninitialized parameters"):
        wrap(module)(batch())


# --------------------------------------------------------------------------- the wrapper itself


@own
def state_dict_has_the_prefix(wrap):
    module = Net()
    assert list(wrap(module).state_dict()) == [f"module.{name}" for name in module.state_dict()]


@own
def copies_have_slots_of_their_own(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(x), module(x))
        twin.close()


@own
def nested_wrappers_run_once(wrap):
    module, x = Net(), batch()
    inner = wrap(nn.Linear(3, 2))
    model = wrap(nn.Sequential(module, inner))
    output = model(x)
    torch.testing.assert_close(output, inner.module(module(x)))
    assert inner.slots == ()


@own
def steps_can_be_overridden(wrap):
    class Counting(DataParallel):
        def scatter(self, inputs, kwargs, device_ids):
            return [(inputs[0][:1],), (inputs[0][1:],)], [{}, {}]

        def gather(self, outputs, output_device):
            return list(outputs)

    module, x = Net(), batch()
    model = Counting(module, wrap.device_ids)
    first, second = model(x)
    assert (len(first), len(second)) == (1, 5)
    (first.sum() + second.sum()).backward()
    grads = gradients(module)
    module.zero_grad()
    step_ = module(x).sum()
    step_.backward()
    torch.testing.assert_close(grads, gradients(module))
    model.close()


@own
def replicas_can_be_called_one_by_one(wrap):
    class Sequential(DataParallel):
        def parallel_apply(self, replicas, inputs, kwargs):
            return [r(*i, **k) for r, i, k in zip(replicas, inputs, kwargs, strict=True)]

    module, x = Net(), batch()
    model = Sequential(module, wrap.device_ids)
    output = model(x)
    torch.testing.assert_close(output, module(x))
    output.sum().backward()
    model.close()


@own
def calls_from_several_threads(wrap):
    module, xs, results = Net(), [batch() for _ in range(4)], {}
    model = wrap(module)

    def call(i):
        results[i] = model(xs[i])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(xs):
        torch.testing.assert_close(results[i], module(x))


@own
def slots_are_made_once(wrap):
    module, x = Net(), batch()
    model = wrap(module)
    step(model, module, x)
    (slot,) = model.slots
    moved = slot.statistics.parameter_bytes, slot.statistics.other_bytes
    for _ in range(3):
        step(model, module, x)
        with torch.no_grad():
            module.first.weight.mul_(0.9)
    assert model.slots == (slot,)
    assert (slot.statistics.parameter_bytes, slot.statistics.other_bytes) == moved


@own
def graphs_that_are_dropped_are_dropped_in_slots(wrap):
    module = Net()
    model = wrap(module)
    outputs = [model(batch()) for _ in range(5)]
    del outputs
    output = model(batch())
    model.slots[0].close()
    with pytest.raises((RuntimeError, ConnectionError), match="slot 1"):
        output.sum().backward()
    step(model, module, batch())


@own
def the_functional_form(wrap):
    module, x = Net(), batch()
    output = data_parallel(module, x, wrap.device_ids)
    torch.testing.assert_close(output, module(x))
    output.sum().backward()
    grads = gradients(module)
    module.zero_grad()
    step_ = module(x).sum()
    step_.backward()
    torch.testing.assert_close(grads, gradients(module))


@same
def spectral_norm_in_evaluation(wrap):
    module = spectral_norm(nn.Linear(4, 4)).eval()
    return step(wrap(module), module, batch())


# ------------------------------------------------------- what a module holds besides its parameters


class Holder:
    """An object that is no module and holds parts of one."""

    def __init__(self, **parts):
        self.__dict__.update(parts)

    def __call__(self, x):
        return self.layer(x)


@same
def plain_objects_and_closures_that_hold_parts_of_the_module(wrap):
    module = Of(lambda self, x: self.holder(x) + self.closure(x) * self.table["a"][0].weight.sum())
    linear = module.linear
    module.holder = Holder(layer=linear)
    module.holder.itself = module.holder
    module.closure = lambda x: linear(x).tanh()
    module.table = {"a": [Holder(weight=linear.weight)]}
    return step(wrap(module), module, batch())


@own
def a_parameter_that_the_module_hides_is_an_error(wrap):
    weight = torch.ones(4, requires_grad=True)
    for hidden in (Holder(layer=nn.Linear(4, 4)), lambda x: x * weight, [weight]):
        module = Of(lambda self, x: self.linear(self.hidden(x)))
        module.hidden = hidden if callable(hidden) else partial(torch.mul, *hidden)
        model = wrap(module)
        with pytest.raises(RuntimeError, match=r"of shape \(4.* its gradient would be lost"):
            model(batch())
        with torch.no_grad():
            torch.testing.assert_close(model(x := batch()), module(x))


@same
def a_leaf_that_the_forward_pass_makes_is_its_own_affair(wrap):
    def forward(self, x):
        offset = torch.zeros(len(x), 3, requires_grad=True)
        energy = (self.linear(x) + offset).pow(3).sum()
        (slope,) = torch.autograd.grad(energy, offset, create_graph=True)
        return slope + self.linear(x) + offset

    module = Of(forward)
    return step(wrap(module), module, batch())


@own
def devices_are_checked_when_it_is_called(wrap):
    module = nn.Sequential(nn.Linear(4, 3, device="meta"), nn.Tanh())
    model = wrap(module)
    with pytest.raises(RuntimeError, match="parameters and buffers on device cpu"):
        model(batch())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.5)
    step(model, module, batch())
    model.to("meta")
    with pytest.raises(RuntimeError, match="but found one of them on device: meta"):
        model(batch())


@own
def a_penalty_on_gradients_reaches_every_parameter(wrap):
    module, x = nn.Linear(4, 1), torch.ones(2, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(wrap(module)(x).sum(), x, create_graph=True)
    slope.mean().backward()
    torch.testing.assert_close(module.weight.grad, torch.full((1, 4), 0.25))
    assert module.bias.grad.tolist() == [0.0]
