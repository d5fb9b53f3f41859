"""Parameters, and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.parity.behaviours.pieces import Net, Of, batch, own, same, step


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
def buffers_and_frozen_parameters_in_the_memory_of_parameters(wrap):
    module = Of(lambda self, x: self.linear(x) + x @ (self.same + self.twin + self.fixed).t())
    module.register_buffer("same", module.linear.weight.data)
    module.register_buffer("twin", module.linear.weight.detach())
    module.fixed = nn.Parameter(module.linear.weight.data, requires_grad=False)
    model, results = wrap(module), []
    optimizer = torch.optim.SGD(module.linear.parameters(), lr=0.1)
    for _ in range(3):
        module.zero_grad()
        results.append(step(model, module.linear, batch())[0])
        optimizer.step()
    return results, module.same, module.fixed


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
