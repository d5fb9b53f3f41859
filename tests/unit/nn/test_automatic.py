"""Which calls may be taken on slots, and what is made of the ways when something speaks against
them. No slots are made here: tests/parity/test_automatic_slots.py has them."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import dlpack

from lockstitch.nn import Replicate, automatic
from lockstitch.nn.automatic import PLAIN, Automatic, call_plainly
from lockstitch.nn.calibration import Calibration
from lockstitch.nn.slots.shared_leaves import share

X = torch.randn(6, 4)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def make(ways=(PLAIN, "thread"), slots=2):
    return Automatic(0, slots, Calibration(list(ways), Clock()))


def size(auto, *inputs, module=None, **kwargs):
    return auto._size_of_batch(module or nn.Linear(4, 4), inputs, kwargs)


def test_a_batch_is_what_all_tensors_have_in_common():
    assert size(make(), X) == 6
    assert size(make(), X, [X, {"a": X}], 3, name="n", scale=X) == 6
    assert size(make(), X, Replicate(torch.ones(5))) == 6


@pytest.mark.parametrize(
    "inputs",
    [
        (X, X[:5]),
        (X, torch.tensor(1.0)),
        (X[:1],),
        (3,),
        (X, object()),
        (X.to_sparse(),),
        (X.to("meta"),),
    ],
    ids=["sizes", "no rows", "one row", "no tensor", "an object", "sparse", "elsewhere"],
)
def test_other_arguments_are_for_the_plain_module(inputs):
    assert size(make(), *inputs) is None


def test_so_is_what_differs_from_the_first_call():
    auto = make()
    assert size(auto, X, flag=True) == 6
    assert size(auto, X, flag=False) is None
    assert size(auto, X) is None
    assert size(auto, X[:4], flag=True) == 4
    assert size(auto, X, flag=True, module=nn.Linear(4, 4).eval()) is None


def test_so_is_what_is_no_training():
    with torch.no_grad():
        assert size(make(), X) is None
    with torch.inference_mode():
        assert size(make(), X) is None
    found = []
    thread = threading.Thread(target=lambda: found.append(size(make(), X)))
    thread.start()
    thread.join()
    assert found == [None]


def hooked():
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    "module",
    [nn.Tanh(), nn.BatchNorm1d(4), hooked(), nn.Linear(4, 4, device="meta")],
    ids=["no parameters", "statistics", "hooks", "elsewhere"],
)
def test_some_modules_are_never_cut(module):
    auto = make()
    assert size(auto, X, module=module) is None
    assert auto.is_plain


def test_one_core_or_determinism_is_a_reason_not_to_try():
    assert make(slots=1).is_plain
    torch.use_deterministic_algorithms(True)
    try:
        assert make().is_plain
    finally:
        torch.use_deterministic_algorithms(False)
    assert not make().is_plain


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: torch.nn.functional.dropout(x, 0.5),
        lambda x: x.sum(),
        lambda x: x[:3],
        lambda x: (x, "a name"),
    ],
    ids=["draws", "a scalar", "fewer rows", "no tensor"],
)
def test_what_a_plain_step_shows_may_end_the_search(forward):
    auto, module = make(), nn.Linear(4, 4)
    module.forward = forward
    auto.call(module, (X,), {})
    assert auto.is_plain


def test_a_module_that_writes_buffers_stays_plain():
    auto, module = make(), nn.Linear(4, 4)
    module.register_buffer("calls", torch.zeros(()))
    module.forward = lambda x: x + module.calls.add_(1)
    auto.call(module, (X,), {})
    assert auto.is_plain


def test_slots_that_cannot_be_made_are_given_up(monkeypatch):
    def refuse(way):
        def make_slot(number, blueprint):
            raise OSError(f"no {way}")

        return make_slot

    monkeypatch.setattr(automatic, "factory_for", refuse)
    auto, module = make([PLAIN, "thread", "fork"]), nn.Linear(4, 4)
    for _ in range(30):
        output = auto.call(module, (X,), {})
        torch.testing.assert_close(output, module(X))
        output.sum().backward()
    assert auto.is_plain
    assert auto.pools == []


def test_a_copy_begins_anew():
    auto = make()
    auto.calibration.keep_default()
    other = copy.deepcopy(auto)
    assert other.calibration is not auto.calibration
    assert other.dim == auto.dim
    assert other.pools == []


def test_marks_are_taken_off_for_the_plain_module():
    module = nn.Identity()
    module.forward = lambda x, y, z: (x, y, z["w"])
    given = X, Replicate(X), {"w": [Replicate(3)]}
    x, y, w = call_plainly(module, given, {})
    assert x is X
    assert torch.equal(y, X)
    assert w == [3]


# ---------------------------------------------------------------- memory

VIEWERS = {
    "detached": torch.Tensor.detach,
    "data": lambda weight: weight.data,
    "row": lambda weight: weight[0],
    "array": lambda weight: weight.detach().numpy(),
    "dlpack": lambda weight: dlpack.to_dlpack(weight.detach()),
    "storage": torch.Tensor.untyped_storage,
    "dictionary": lambda weight: {"weight": weight.detach()},
}


@pytest.mark.parametrize("look", VIEWERS.values(), ids=VIEWERS)
def test_memory_that_others_look_at_is_recognized_on_every_torch(look):
    module = nn.Linear(4, 4)
    assert not automatic._is_seen_elsewhere(module)
    viewer = look(module.weight)
    assert automatic._is_seen_elsewhere(module)
    del viewer


def test_so_is_memory_that_came_from_elsewhere():
    module = nn.Linear(4, 4)
    array = np.zeros((4, 4), np.float32)
    module.weight = nn.Parameter(torch.from_numpy(array))
    assert automatic._is_seen_elsewhere(module)
    module.weight = nn.Parameter(torch.zeros(4, 4))
    assert not automatic._is_seen_elsewhere(module)
    module.share_memory()
    assert automatic._is_seen_elsewhere(module)


def test_who_only_holds_the_parameter_does_not_look_at_its_memory():
    module = nn.ParameterList([torch.zeros(4), torch.zeros(0)])
    held = list(module)
    assert not automatic._is_seen_elsewhere(module)
    held.append(module[0].detach())
    assert automatic._is_seen_elsewhere(module)
    module[0].requires_grad_(False)  # then it is not moved
    assert not automatic._is_seen_elsewhere(module)


def test_parameters_that_lie_with_slots_already_are_not_moved_again():
    module = nn.Linear(4, 4)
    assert share(list(module.parameters()))
    view = module.weight.detach()
    assert not automatic._is_seen_elsewhere(module)
    assert share(list(module.parameters())) == 0
    module.weight.data.fill_(3)
    assert torch.equal(view, torch.full((4, 4), 3.0))
