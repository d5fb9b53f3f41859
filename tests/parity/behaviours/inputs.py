"""What goes in and what comes out."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from lockstitch.nn import Replicate, Shard
from tests.parity.behaviours.pieces import Net, Of, batch, gradients, own, same, step


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
