"""What `DataParallel` takes, and what it does before there are any slots."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.errors import NotInitializedError
from lockstitch.nn import DataParallel, data_parallel, parallel


def test_a_slip_in_a_slots_name_says_what_there_is() -> None:
    model = DataParallel(nn.Linear(3, 2), ["cpu", "frok"])
    with pytest.raises(NotInitializedError, match="'frok' in device_ids is neither 'fork'"):
        model(torch.ones(4, 3))
    with pytest.raises(TypeError, match="'fork' is a text"):
        DataParallel(nn.Tanh(), "fork")  # type: ignore[arg-type]


@pytest.mark.parametrize(("thing", "advice"), [(3, "not 3$"), (nn.Tanh, "an instance of it first")])
@pytest.mark.parametrize("ids", [None, [], ["cpu", "cpu"]], ids=str)
def test_what_is_no_module_is_refused(thing, advice, ids):
    with pytest.raises(TypeError, match=f"module is a torch.nn.Module, .*{advice}"):
        DataParallel(thing, ids)


@pytest.mark.parametrize("function", [DataParallel, lambda m, ids: data_parallel(m, None, ids)])
@pytest.mark.parametrize("ids", [2, torch.device("cpu")], ids=str)
def test_slots_that_are_no_list_are_a_type_error_as_in_torch(function, ids):
    with pytest.raises(TypeError, match=r'\["fork", "fork"\].* is not iterable'):
        function(nn.Tanh(), ids)


def test_programs_that_ask_for_torchs_type_know_it():
    module = nn.Linear(2, 2)
    model = DataParallel(module, ["thread", "thread"])
    assert isinstance(model, nn.DataParallel)
    assert model.module is module
    assert (parallel.DataParallel, parallel.data_parallel) == (DataParallel, data_parallel)


class Told(nn.Linear):
    """As batch normalisation over replicas is written: each is told its number."""

    number = None

    def forward(self, inputs):
        assert self.number is not None
        return super().forward(inputs)


def tell(replicas):
    for number, replica in enumerate(replicas):
        for part in replica.modules():
            if isinstance(part, Told):
                part.number = number
    return replicas


class Telling(DataParallel):
    def replicate(self, module, device_ids):
        return tell(super().replicate(module, device_ids))


def told_by_a_subclass(net, ids):
    return Telling(net, ids)


def told_by_a_patch(net, ids):
    model = DataParallel(net, ids)
    replicate = model.replicate
    model.replicate = lambda module, device_ids: tell(replicate(module, device_ids))
    return model


@pytest.mark.parametrize("make", [told_by_a_subclass, told_by_a_patch])
@pytest.mark.parametrize("ids", [["thread", "thread"], ["fork", "fork"], [0, 1, 2]], ids=str)
def test_whoever_overrides_replicate_gets_modules(make, ids):
    net = nn.Sequential(Told(3, 2), nn.Tanh())
    inputs = torch.randn(6, 3)
    make(net, ids)(inputs).sum().backward()
    plain = nn.Linear(3, 2)
    plain.load_state_dict(net[0].state_dict())
    plain(inputs).tanh().sum().backward()
    torch.testing.assert_close(net[0].weight.grad, plain.weight.grad)
    assert net[0].number is None


def test_what_a_slot_elsewhere_has_not_says_where_there_is_more():
    model = DataParallel(nn.Linear(2, 2), ["thread", "thread"])
    here, replica = model.replicate(model.module, model.device_ids)
    assert here is model.module
    with pytest.raises(AttributeError, match=r"no 'encode' here.*lockstitch.nn.parallel.replicate"):
        replica.encode(torch.ones(1, 2))
    model.close()
