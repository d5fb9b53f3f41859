"""What a run sends during it, and what is left for its end."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from lockstitch.autograd.emission import Emission, compact
from lockstitch.autograd.graph import Component
from lockstitch.autograd.stitch import Receive
from lockstitch.ids import GlobalId

RECEIVES = [Receive(GlobalId(0, 0, number)) for number in range(3)]
ONE = (torch.ones(1), None)


def emission(hold_last):
    posted = []
    nodes = tuple(SimpleNamespace(receive=receive) for receive in RECEIVES)
    component = Component((), (), (), nodes, False)
    run = Emission(component, lambda receive, some: posted.append((receive, some)), hold_last)
    return run, posted


def test_gradients_leave_at_once():
    run, posted = emission(hold_last=False)
    for receive in RECEIVES:
        run.emit(receive, ONE)
    assert posted == [(receive, ONE) for receive in RECEIVES]
    assert run.emitted == [receive.message for receive in RECEIVES]
    assert run.remaining() == []


def test_the_last_one_can_be_held_for_the_report():
    run, posted = emission(hold_last=True)
    for receive in RECEIVES:
        run.emit(receive, ONE)
    assert len(posted) == 2
    assert run.emitted == [receive.message for receive in RECEIVES[:2]]
    assert run.remaining() == [(RECEIVES[2], ONE)]


def test_receives_without_gradient_leave_null_tokens():
    run, posted = emission(hold_last=True)
    run.emit(RECEIVES[1], ONE)
    assert len(posted) == 1
    assert run.remaining() == [(RECEIVES[0], None), (RECEIVES[2], None)]


def test_gradients_that_are_all_missing_are_a_null_token():
    run, posted = emission(hold_last=False)
    run.emit(RECEIVES[0], (None, None))
    assert posted == [(RECEIVES[0], None)]


def test_slices_of_one_large_gradient_are_sent_as_tensors_of_their_own():
    whole = torch.randn(600, 4, 16)
    of_a_sum = torch.ones(()).expand(2000)
    slices = [compact(each) for each in whole.unbind(1)]
    for each, wanted in zip(slices, whole.unbind(1), strict=True):
        assert torch.equal(each, wanted)
        assert each.is_contiguous()
        assert each.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    assert compact(whole) is whole
    assert compact(of_a_sum) is of_a_sum
