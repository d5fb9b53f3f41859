"""Modules on other workers."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.distributed.nn.api.remote_module import RemoteModule as TorchModule

import lockstitch.autograd as dist_autograd
from lockstitch import rpc
from lockstitch.errors import RpcError, SerializationError
from lockstitch.nn import RemoteModule
from lockstitch.nn.api.remote_module import _RemoteModule
from lockstitch.optim import DistributedOptimizer
from lockstitch.testing import LocalCluster


class Scale(nn.Module):
    def __init__(self, factor: float, shift: float = 0.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.inner = nn.Linear(1, 1)
        self.shift = shift

    def forward(self, x: torch.Tensor, *, twice: bool = False) -> Any:
        if isinstance(x, str):
            raise KeyError(x)
        y = self.factor * x + self.shift
        return (y, y) if twice else y


class Hybrid(nn.Module):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.body = RemoteModule(place, nn.Linear, (3, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def mode_of(module_rref: Any) -> bool:
    return module_rref.local_value().training


def call(module: Any, x: torch.Tensor) -> torch.Tensor:
    return module(x) + module.forward(x) + module.forward_async(x).wait()


def attributes(module: Any) -> list[str]:
    return list(vars(module))


@pytest.fixture
def cluster():
    with LocalCluster(3) as cluster, cluster["worker0"].active():
        yield cluster


@pytest.mark.parametrize(
    ("place", "on", "device"),
    [
        ("worker1/cpu", "worker1", "cpu"),
        ("worker1", "worker1", "cpu"),
        ("rank:0/cpu", 0, "cpu"),
        ("rank:2", 2, "cpu"),
        ("cpu", "worker0", "cpu"),
        ("worker1/meta", "worker1", "meta"),
    ],
)
def test_a_module_is_where_it_was_put(cluster, place, on, device):
    module = RemoteModule(place, Scale, (2.0,), {"shift": 1.0})
    owner = module.get_module_rref().owner()
    assert on in (owner.name, owner.id)
    assert (module.on, module.device) == (on, device)
    assert len(module.remote_parameters()) == 3
    assert len(module.remote_parameters(recurse=False)) == 1
    if device == "cpu":
        assert torch.equal(module(torch.ones(2)), torch.full((2,), 3.0))
        assert torch.equal(
            module.forward_async(torch.ones(2), twice=True).wait()[1], 3 * torch.ones(2)
        )


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        ("worker1/foo", RuntimeError, "at start of device string"),
        ("worker1/cpu/cpu", ValueError, "Could not parse remote_device: worker1/cpu/cpu"),
        ("/cpu", ValueError, "Could not parse remote_device: /cpu"),
        ("nobody/cpu", RpcError, "could not find destination"),
        (3, TypeError, "Invalid type for remote_device"),
    ],
)
def test_a_place_that_is_none_is_refused(cluster, place, error, message):
    with pytest.raises(error, match=message):
        RemoteModule(place, Scale, (2.0,))


def test_it_needs_a_worker():
    with pytest.raises(AssertionError, match="RemoteModule only works in RPC.*call init_rpc.*'wo"):
        RemoteModule("worker1", Scale, (2.0,))


def test_what_makes_no_module_is_refused_by_the_first_use(cluster):
    module = RemoteModule("worker1", dict)
    with pytest.raises(ValueError, match=r"returns an instance of <class nn.Module>, but .*dict"):
        module(1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((Scale(2.0),), "module_cls is a class of modules, .* which makes the module where it is"),
        (("Scale",), "module_cls is a class of modules"),
        ((Scale, 2.0), r"args must be a tuple or list .* args=\(x,\)"),
    ],
)
def test_slips_are_explained_at_once(cluster, given, message):
    with pytest.raises(TypeError, match=message):
        RemoteModule("worker1", *given)


def test_arguments_that_the_class_does_not_take_are_shown_without_frames_of_ours(cluster):
    with pytest.raises(TypeError, match="positional argument") as caught:
        RemoteModule("worker1", Scale)(torch.ones(1))
    assert caught.value.__cause__ is None


def test_scripted_interfaces_are_refused(cluster):
    with pytest.raises(NotImplementedError, match="TorchScript"):
        _RemoteModule("worker1", Scale, (2.0,), None, object())


def test_errors_of_forward_keep_their_type(cluster):
    module = RemoteModule("worker1", Scale, (2.0,))
    with pytest.raises(KeyError, match="lost"):
        module("lost")
    with pytest.raises(TypeError, match="unexpected keyword"):
        module.forward_async(torch.ones(1), other=3).wait()


def test_training_mode_is_set_there(cluster):
    module = RemoteModule("worker1", Scale, (2.0,))
    for set_mode, expected in [
        (module.eval, False),
        (module.train, True),
        (lambda: module.train(False), False),
    ]:
        assert set_mode() is module
        assert rpc.rpc_sync("worker1", mode_of, (module.module_rref,)) is expected


def test_a_third_worker_gets_a_handle_of_the_same_module(cluster):
    module = RemoteModule("worker1", Scale, (2.0,))
    x = torch.ones(2)
    module.note = "stays here"
    expected = ["on", "device", "is_device_map_set", "is_scriptable", "generated_methods"]
    expected += ["module_rref", "forward_async", "forward"]
    for name in ("worker2", "worker1", "worker0"):
        assert torch.equal(rpc.rpc_sync(name, call, (module, x)), 6 * x)
        assert rpc.rpc_sync(name, attributes, (module,)) == expected
    other = RemoteModule.init_from_module_rref("worker1/cpu", module.get_module_rref())
    assert torch.equal(call(other, x), 6 * x)
    assert other.get_module_rref() is module.get_module_rref()


def test_a_module_with_a_remote_part_can_be_sent(cluster):
    hybrid = Hybrid("worker1/cpu")
    x = torch.randn(5, 3)
    assert torch.equal(rpc.rpc_sync("worker2", nn.Module.__call__, (hybrid, x)), hybrid(x))


@pytest.mark.parametrize("copying", [pickle.dumps, copy.deepcopy])
def test_no_other_pickler_takes_it(cluster, copying):
    with pytest.raises(RuntimeError, match="Cannot pickle RemoteModule in python pickler"):
        copying(RemoteModule("worker1", Scale, (2.0,)))


def test_methods_that_have_no_meaning_here_are_refused(cluster):
    module = RemoteModule("worker1", Scale, (2.0,))
    names = "register_buffer register_parameter add_module apply cuda cpu type float double half to"
    names += " register_forward_hook state_dict load_state_dict named_parameters buffers children"
    names += " modules named_modules requires_grad_ zero_grad share_memory extra_repr"
    for name in names.split():
        with pytest.raises(ValueError, match=f"Method ``{name}`` not supported for RemoteModule"):
            getattr(module, name)()
    with pytest.raises(ValueError, match="Please use ``remote_parameters`` instead"):
        module.parameters()


def test_a_step_of_a_hybrid_model_is_that_of_a_whole_one(cluster):
    torch.manual_seed(0)
    hybrid = Hybrid("worker1/cpu")
    body = copy.deepcopy(hybrid.body.get_module_rref().to_here())
    whole = nn.Sequential(body, nn.ReLU(), copy.deepcopy(hybrid.head))
    references = hybrid.body.remote_parameters() + [rpc.RRef(p) for p in hybrid.head.parameters()]
    ours = DistributedOptimizer(optim.SGD, references, lr=0.1, momentum=0.9)
    theirs = optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        x = torch.randn(6, 3)
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [hybrid(x).square().mean()])
            ours.step(context_id)
        theirs.zero_grad()
        whole(x).square().mean().backward()
        theirs.step()
    for reference, parameter in zip(references, whole.parameters(), strict=True):
        torch.testing.assert_close(reference.to_here(), parameter)


def test_it_says_where_it_is(cluster):
    module = RemoteModule("worker1", Scale, (2.0,))
    assert repr(module) == "RemoteModule(on='worker1', device='cpu')"
    assert "RemoteModule(on='worker1'" in repr(Hybrid("worker1"))


def test_it_has_all_that_torchs_has():
    theirs = [
        name
        for kind in (TorchModule, TorchModule.__mro__[1])
        for name in vars(kind)
        if not name.startswith("_") and callable(getattr(kind, name))
    ]
    assert {"remote_parameters", "init_from_module_rref", "train", "share_memory"} <= set(theirs)
    ours = {name for kind in RemoteModule.__mro__[:2] for name in vars(kind)}
    assert [name for name in theirs if name not in ours] == []


def test_an_input_that_cannot_be_sent_is_named(cluster):
    module = RemoteModule("worker1", Scale, (2.0,))
    with pytest.raises(
        SerializationError, match=r"a remote module's forward to .*args\[1\] is <unl"
    ):
        module(torch.ones(1), threading.Lock())


class Named(nn.Module):
    def forward(self, module_rref: Any, *, device: str, args: Any = None) -> Any:
        return module_rref, device, args


def test_a_forward_may_name_its_arguments_as_it_likes(cluster):
    module = RemoteModule("worker1", Named)
    assert module(module_rref=1, device="here") == (1, "here", None)
    assert module.forward_async(2, device="there", args=(3,)).wait() == (2, "there", (3,))
