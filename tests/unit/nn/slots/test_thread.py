"""Who runs a pass of a slot that is a thread, and what becomes of random numbers."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from lockstitch.errors import SlotDiedError
from lockstitch.modes import Modes
from lockstitch.nn.slots import base, generators
from lockstitch.nn.slots.base import BackwardRequest, Blueprint, Request
from lockstitch.nn.slots.lifting import lift
from lockstitch.nn.slots.thread import ThreadSlot

WHERE: list[threading.Thread] = []


class Where(nn.Module):
    """Notes in `WHERE` which thread it runs in; may draw random numbers."""

    def __init__(self, noise=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.noise = noise

    def forward(self, x):
        WHERE.append(threading.current_thread())
        if self.noise:
            x = x + torch.rand(2)
        return x * self.weight


@pytest.fixture(autouse=True)
def _forget():
    WHERE.clear()


@pytest.fixture
def make_slot():
    slots = []

    def make(module):
        slots.append(ThreadSlot(1, Blueprint(module, list(module.parameters()))))
        return slots[-1]

    yield make
    for slot in slots:
        slot.close()


def request(number):
    skeleton, tensors = lift(((torch.ones(2),), {}))
    modes, state = Modes.of_this_thread(), generators.fingerprint()
    seed = generators.seed_for(state, 1)
    return Request(number, skeleton, tensors, [False], modes, torch.float32, seed, state)


def run(slot, number):
    slot.start(request(number))
    return slot.finish(number)


def threads_of(slot, count):
    for number in range(count):
        run(slot, number)
    return [each is threading.current_thread() for each in WHERE[-count:]]


def test_the_first_pass_is_the_threads_and_short_ones_are_the_callers(make_slot, monkeypatch):
    monkeypatch.setattr(base, "SHORT_SECONDS", 1e9)
    assert threads_of(make_slot(Where()), 4) == [False, True, True, True]


def test_long_passes_stay_with_the_thread(make_slot, monkeypatch):
    monkeypatch.setattr(base, "SHORT_SECONDS", 0.0)
    assert threads_of(make_slot(Where()), 20) == [False] * 20


def test_a_pass_that_has_become_long_goes_to_the_thread_again(make_slot, monkeypatch):
    monkeypatch.setattr(base, "SHORT_SECONDS", 1e9)
    slot = make_slot(Where())
    threads_of(slot, 3)
    monkeypatch.setattr(base, "SHORT_SECONDS", 0.0)
    assert threads_of(slot, 2) == [False, False]


def test_backward_gives_the_gradients_of_the_leaves(make_slot):
    slot = make_slot(Where())
    for number in range(3):
        run(slot, number)
        slot.start_backward(BackwardRequest(number, [torch.full((2,), 3.0)], keeps_graph=False))
        assert slot.finish_backward(number).leaves[0].tolist() == [3, 3]


def test_random_numbers_are_the_slots_own_and_the_callers_go_on(make_slot):
    slot = make_slot(Where(noise=True))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        found = []
        for number in range(3):
            slot.start(request(number))
            torch.rand(2)  # slot 0's part
            found.append(slot.finish(number).tensors[0])
        after = torch.rand(2)
        torch.manual_seed(1)
        torch.rand(2), torch.rand(2), torch.rand(2)
        assert torch.equal(after, torch.rand(2))
    assert not torch.equal(found[0], found[1])


def test_what_the_module_raises_comes_from_the_pass_that_raised_it(make_slot):
    module = nn.Linear(3, 1)  # not two
    slot = make_slot(module)
    slot.start(request(1))
    with pytest.raises(RuntimeError, match="mat1 and mat2|shapes|size mismatch"):
        slot.finish(1)
    assert slot.is_alive


def test_one_that_is_closed_takes_no_requests(make_slot):
    slot = make_slot(Where())
    run(slot, 1)
    slot.close()
    slot.close()
    assert not slot.is_alive
    with pytest.raises(SlotDiedError, match="its thread has ended"):
        run(slot, 2)
