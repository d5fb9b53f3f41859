"""Replicas: values, gradients, identities, and what of them comes back to the module."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from lockstitch.nn.parallel import gather, parallel_apply, replicate, scatter


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.embed.weight
        self.again = self.norm
        self.scales = nn.ParameterList([torch.ones(4), torch.ones(4)])
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.randn(4, requires_grad=True))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(x)) * self.scales[0] * self.scales[1] + self.table
        return self.out(hidden)


def parallel(module: nn.Module, x: torch.Tensor, slots: int) -> torch.Tensor:
    places = list(range(slots))
    outputs = parallel_apply(replicate(module, places), scatter(x, places))
    return gather(outputs, "cpu")


def test_values_and_gradients_are_the_modules() -> None:
    torch.manual_seed(0)
    module = Tied().eval()
    plain = copy.deepcopy(module)
    plain.table = plain.table.detach().requires_grad_()
    module.table = module.table.detach().requires_grad_()
    x = torch.arange(6)
    ours = parallel(module, x, 3)
    theirs = plain(x)
    torch.testing.assert_close(ours, theirs)
    ours.pow(2).sum().backward()
    theirs.pow(2).sum().backward()
    for (name, a), b in zip(module.named_parameters(), plain.parameters(), strict=True):
        expected = torch.zeros(2) if name == "unused" else b.grad
        torch.testing.assert_close(a.grad, expected, msg=name)
    torch.testing.assert_close(module.table.grad, plain.table.grad)


def test_what_is_one_stays_one() -> None:
    for replica in replicate(Tied(), [0, 1]):
        assert replica.out.weight is replica.embed.weight
        assert replica.again is replica.norm
        assert replica.nothing is None


def test_a_replicas_parameters_are_parameters() -> None:
    module = Tied()
    names = [name for name, _ in module.named_parameters()]
    for replica in replicate(module, [0, 1]):
        assert [name for name, _ in replica.named_parameters()] == names
        assert all(isinstance(p, nn.Parameter) for p in replica.parameters())
        assert next(replica.parameters()).requires_grad
        assert len(replica.scales) == 2
        assert replica.out._former_parameters["weight"] is replica.out.weight
        assert set(replica.state_dict()) == set(module.state_dict())
    assert all(p.is_leaf for p in module.parameters())


def test_only_the_first_replicas_buffers_are_the_modules() -> None:
    module = Tied().train()
    first, second = replicate(module, [0, 1])
    second(torch.arange(4))
    assert module.norm.num_batches_tracked == 0
    first(torch.arange(4))
    assert module.norm.num_batches_tracked == 1


def test_attributes_set_in_a_replica_are_lost() -> None:
    module = Tied()
    replicate(module, [0])[0].counter = 3
    assert not hasattr(module, "counter")


def test_detached_replicas_give_no_gradients() -> None:
    module = Tied().eval()
    for replica in replicate(module, [0, 1], detach=True):
        assert not any(p.requires_grad for p in replica.parameters())
        assert torch.equal(replica.out.weight, module.out.weight)


def test_parameters_take_no_memory_on_one_device() -> None:
    module = Tied()
    pointers = {p.data_ptr() for p in module.parameters()}
    for replica in replicate(module, [0, 1]):
        assert {p.data_ptr() for p in replica.parameters()} == pointers


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module: Any = kind(3, 4, 2, batch_first=True)
    x = torch.randn(4, 5, 3)
    replicas = replicate(module, [0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = [r(p)[0] for r, p in zip(replicas, scatter(x, [0, 1]), strict=True)]
    joined = gather(outputs, "cpu")
    torch.testing.assert_close(joined, module(x)[0])
    joined.sum().backward()
    ours = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    module(x)[0].sum().backward()
    for a, p in zip(ours, module.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_a_lazy_module_is_refused() -> None:
    with pytest.raises(RuntimeError, match="uninitialized parameters"):
        replicate(nn.LazyLinear(3), [0, 1])


def test_a_frozen_parameter_stays_frozen() -> None:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    replica, _ = replicate(module, [0, 1])
    assert (replica.weight.requires_grad, replica.bias.requires_grad) == (True, False)


def test_zero_grad_within_a_replica_warns() -> None:
    replica = replicate(nn.Linear(2, 2), [0], detach=True)[0]
    with pytest.warns(UserWarning, match=r"from a module created with nn\.DataParallel"):
        replica.zero_grad()


def test_a_replica_can_be_saved() -> None:
    module = nn.Linear(2, 2)
    file = io.BytesIO()
    torch.save(replicate(module, [0])[0], file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded.weight, module.weight)


def test_no_places_no_replicas() -> None:
    assert replicate(nn.Linear(2, 2), []) == []


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it
def test_a_compiled_module_keeps_its_parameters_and_its_replicas_use_theirs() -> None:
    module = nn.Linear(2, 2)
    compiled: Any = torch.compile(module, backend="eager")
    x = torch.randn(4, 2)
    expected = module(x).detach()
    outputs = parallel_apply(replicate(compiled, [0, 1]), [x, x])
    outputs[1].sum().backward()
    assert module.weight.grad is not None
    assert len(list(compiled.parameters())) == 2
    detached = parallel_apply(replicate(compiled, [0, 1], detach=True), [x, x])
    for output in [*outputs, *detached]:
        torch.testing.assert_close(output.detach(), expected)
    # The module's own parameters would want gradients.
    assert [each.requires_grad for each in detached] == [False, False]
