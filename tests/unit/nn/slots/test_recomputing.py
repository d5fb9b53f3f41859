"""Passes that set the generator are seen, and are the caller's."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lockstitch.nn import DataParallel
from lockstitch.nn.slots import base
from lockstitch.nn.slots.recomputing import Recomputing


def test_the_first_the_eighth_and_the_64th_pass_are_alone():
    recomputing = Recomputing()
    assert [i for i in range(1, 512) if recomputing.must_be_alone()] == [1, 8, 64]


def recompute():
    with torch.random.fork_rng([]):
        torch.rand(1)
    return "done"


def test_all_are_alone_once_one_has_set_the_generator():
    recomputing = Recomputing()
    assert recomputing.run(lambda: "nothing") == "nothing"
    assert not recomputing.is_seen
    assert recomputing.run(recompute) == "done"
    assert recomputing.is_seen
    assert all(recomputing.must_be_alone() for _ in range(20))
    assert sys.getprofile() is None


def test_what_a_pass_raises_is_raised():
    recomputing = Recomputing()
    with pytest.raises(ZeroDivisionError):
        recomputing.run(lambda: 1 / 0)
    assert sys.getprofile() is None


def test_a_program_that_is_being_profiled_goes_on_to_be():
    seen = []

    def profile(_frame, event, _argument):
        seen.append(event)

    recomputing = Recomputing()
    sys.setprofile(profile)
    try:
        recomputing.run(recompute)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert "call" in seen


class Drops(nn.Module):
    """Drops numbers of its input, in a part that is computed again; notes who does it."""

    def __init__(self, computes_again):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.computes_again = computes_again

    def drop(self, x):
        THREADS.add(threading.current_thread())
        return nn.functional.dropout(x + self.weight, 0.5)

    def forward(self, x):
        for _ in range(3):
            x = checkpoint(self.drop, x, use_reentrant=False) if self.computes_again else x * 1
        return x


THREADS = set()


@pytest.mark.parametrize("computes_again", [True, False])
def test_a_slot_that_is_a_thread_leaves_such_passes_to_the_caller(monkeypatch, computes_again):
    monkeypatch.setattr(base, "SHORT_SECONDS", 0.0)  # nothing is too short for the thread
    model = DataParallel(Drops(computes_again), ["thread"] * 3)
    for _ in range(12):
        x = torch.ones(30_000, 3, requires_grad=True)
        output = model(x)
        THREADS.clear()
        state = torch.get_rng_state()
        output.sum().backward()
        assert torch.equal(x.grad, output)
        assert torch.equal(torch.get_rng_state(), state)
        assert {threading.current_thread()} >= THREADS
    assert [slot._recomputing.is_seen for slot in model.slots] == [computes_again] * 2
    model.close()
