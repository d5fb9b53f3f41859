"""A replica shares parameters with its module, and nothing else that a pass may write to."""

from __future__ import annotations

import torch
from torch import nn

from lockstitch.nn.slots.replicas import matching, replicate_here


def test_parameters_are_real_ones_on_the_same_memory():
    module = nn.Linear(2, 3)
    replica = replicate_here(module)
    assert [type(each) for each in replica.parameters()] == [nn.Parameter] * 2
    with torch.no_grad():
        module.weight.fill_(7)
    assert replica.weight.eq(7).all()
    assert replica.weight._version == module.weight._version
    replica(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad is None


def test_what_is_shared_in_the_module_is_shared_in_the_replica():
    module = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    module["b"].weight = module["a"].weight
    module["c"] = module["a"]
    replica = replicate_here(module)
    assert replica["b"].weight is replica["a"].weight
    assert replica["c"] is replica["a"]
    assert replica["a"] is not module["a"]


def test_buffers_are_copies():
    module = nn.BatchNorm1d(2)
    replica = replicate_here(module)
    replica(torch.randn(4, 2))
    assert module.running_mean.eq(0).all()
    assert not replica.running_mean.eq(0).any()


def test_lists_and_methods_refer_to_the_replicas_parts():
    module = nn.Linear(2, 2)
    module.parts = [module, {"weight": module.weight}, "name"]
    module.method = module.extra_repr
    replica = replicate_here(module)
    assert replica.parts[0] is replica
    assert replica.parts[1]["weight"] is replica.weight
    assert replica.parts[2] == "name"
    assert replica.method.__self__ is replica


def test_leaves_are_found_again():
    module = nn.Linear(2, 3)
    module.bias.requires_grad_(requires_grad=False)
    module.register_buffer("scale", torch.ones(1, requires_grad=True))
    replica = replicate_here(module)
    assert matching(module, replica, [module.scale, module.weight]) == [
        replica.scale,
        replica.weight,
    ]
    assert replica.scale.data_ptr() == module.scale.data_ptr()


def test_a_compiled_module_keeps_its_parameters_and_its_replica_uses_its_own():
    module = nn.Linear(2, 2)
    compiled = torch.compile(module, backend="eager")
    replica = replicate_here(compiled)
    assert len(list(compiled.parameters())) == 2
    assert [name for name, _ in replica.named_parameters()] == [
        "_orig_mod.weight",
        "_orig_mod.bias",
    ]
    replica(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad is None
    assert replica._orig_mod.weight.grad is not None
