"""Which calls may be taken on slots, and what is made of the ways when something speaks against
them. No slots are made here: tests/parity/test_automatic_slots.py has them."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from lockstitch.nn import Replicate, automatic
from lockstitch.nn.automatic import PLAIN, Automatic, call_plainly
from lockstitch.nn.calibration import Calibration

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
    assert auto.teams == []


def test_a_copy_begins_anew():
    auto = make()
    auto.calibration.keep_default()
    other = copy.deepcopy(auto)
    assert other.calibration is not auto.calibration
    assert other.dim == auto.dim
    assert other.teams == []


def test_marks_are_taken_off_for_the_plain_module():
    module = nn.Identity()
    module.forward = lambda x, y, z: (x, y, z["w"])
    given = X, Replicate(X), {"w": [Replicate(3)]}
    x, y, w = call_plainly(module, given, {})
    assert x is X
    assert torch.equal(y, X)
    assert w == [3]
