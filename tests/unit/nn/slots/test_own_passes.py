"""Passes of a slot that the caller runs on its own graph: what they leave alone, and what not."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel
from lockstitch.nn.slots import base, own_passes, thread
from lockstitch.nn.slots.execution import Executor
from lockstitch.nn.slots.nesting import is_inside
from lockstitch.nn.slots.own_passes import OwnPasses


class Parts(nn.Module):
    """Uses one of two weights, and counts in a buffer."""

    def __init__(self):
        super().__init__()
        self.used = nn.Parameter(torch.full((2,), 3.0))
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))
        self.counts = self.fails = self.is_leaf = False

    def forward(self, x):
        assert is_inside()
        if self.fails:
            raise KeyError("fails")
        if self.counts:
            self.count += 1
        return self.used if self.is_leaf else x * self.used**2


def prepared(module, *, fills_unused=True):
    passes = OwnPasses("slot 1")
    leaves = [each for each in module.parameters() if each.requires_grad]
    passes.prepare(module, leaves, fills_unused=fills_unused)
    return passes


def test_they_are_possible_when_nothing_has_changed_for_a_while():
    passes = OwnPasses("slot 1")
    quiet = own_passes._QUIET_PASSES
    for _ in range(2):
        assert [passes.are_possible() for _ in range(quiet + 1)] == [False] * quiet + [True]
        passes.disturb()


def test_gradients_go_straight_to_the_modules_parameters_and_to_unused_ones_zeros():
    module = Parts()
    output, written = prepared(module).run((torch.ones(2),), {})
    output.sum().backward()
    assert module.used.grad.tolist() == [6, 6]
    assert module.unused.grad.tolist() == [0, 0]
    assert written == []
    assert not is_inside()


def test_zeros_only_where_they_are_wanted():
    module = Parts()
    output, _ = prepared(module, fills_unused=False).run((torch.ones(2),), {})
    output.sum().backward()
    assert module.unused.grad is None


def test_who_goes_back_through_gradients_reaches_what_they_depend_on_and_no_more():
    module = Parts()
    output, _ = prepared(module).run((torch.ones(2, requires_grad=True),), {})
    (gradient,) = torch.autograd.grad(output.sum(), module.used, create_graph=True)
    gradient.sum().backward()
    assert module.used.grad.tolist() == [2, 2]
    assert module.unused.grad is None


def test_a_buffer_that_is_written_is_the_replicas_and_is_told_of():
    module = Parts()
    module.counts = True
    _, written = prepared(module).run((torch.ones(2),), {})
    assert written == [0]
    assert module.count == 0


def test_what_is_raised_is_raised_as_from_the_slot():
    module = Parts()
    module.fails = True
    with pytest.raises(KeyError, match="fails") as caught:
        prepared(module).run((torch.ones(2),), {})
    assert "Caught KeyError in slot 1" in str(caught.value.__cause__)


def test_an_output_that_is_a_parameter_gathers_no_hooks():
    module = Parts()
    module.is_leaf = True
    passes = prepared(module)
    for _ in range(2):
        passes.run((torch.ones(2),), {})
    assert not module.used._backward_hooks


class Counting(Executor):
    """Counts the passes that were requested."""

    forwards = 0

    def forward(self, request):
        Counting.forwards += 1
        return super().forward(request)


@pytest.fixture
def count(monkeypatch):
    monkeypatch.setattr(thread, "Executor", Counting)
    monkeypatch.setattr(base, "SHORT_SECONDS", 1e9)
    Counting.forwards = 0

    def count(model, passes, x=None):
        before = Counting.forwards
        for _ in range(passes):
            model.zero_grad()
            output = model(torch.ones(4, 2) if x is None else x)
            output.sum().backward()
        return Counting.forwards - before, output

    return count


def test_short_passes_of_a_quiet_module_are_not_requested(count):
    module = Parts()
    model = DataParallel(module, ["thread"] * 3)
    count(model, own_passes._QUIET_PASSES)
    requested, output = count(model, 5)
    assert requested == 0
    assert output.tolist() == [[9, 9]] * 4
    assert module.used.grad.tolist() == [24, 24]
    assert module.unused.grad.tolist() == [0, 0]
    assert model.slots[0].statistics.passes == own_passes._QUIET_PASSES + 5
    model.close()


def test_a_change_is_told_and_seen_by_the_next_own_passes(count):
    module = nn.Sequential(Parts())
    model = DataParallel(module, ["thread"] * 2)
    count(model, own_passes._QUIET_PASSES + 2)
    module[0].counts = True  # in slot 0 too: there is something to be told for ever
    assert count(model, 20)[0] == 20
    module[0].counts = False
    assert count(model, 20)[0] < 20
    module[0].fails = True
    with pytest.raises(KeyError):
        model(torch.ones(4, 2))
    model.close()


class Noise(nn.Module):
    """May draw random numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        noise = torch.rand(len(x), 2) if x[0, 0] else 0
        return x * self.weight + noise


def test_a_module_that_begins_to_draw_draws_other_numbers_in_the_slot_and_is_requested_again(count):
    model = DataParallel(Noise(), ["thread"] * 2)
    count(model, own_passes._QUIET_PASSES + 2, torch.zeros(4, 2))
    drawn = []
    with torch.random.fork_rng():
        for i in range(2):
            torch.manual_seed(1)
            requested, output = count(model, 1, torch.ones(4, 2))
            assert requested == i
            first, second = output[:2], output[2:]
            assert not torch.equal(first, second)
            after = torch.rand(2)
            torch.manual_seed(1)
            torch.rand(2, 2)
            assert torch.equal(after, torch.rand(2))
            drawn.append(second)
    assert torch.equal(*drawn)
    model.close()


class InPlace(nn.Module):
    """Writes to its argument."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return self.linear(x.mul_(2))


def test_parts_that_are_changed_in_place_do_not_disturb_each_other(count):
    model = DataParallel(InPlace(), ["thread"] * 2)
    assert count(model, own_passes._QUIET_PASSES + 4)[0] == own_passes._QUIET_PASSES
    model.close()


def test_within_no_sync_and_for_arguments_on_the_graph_passes_are_requested(count):
    model = DataParallel(Parts(), ["thread"] * 2)
    count(model, own_passes._QUIET_PASSES + 2)
    with model.no_sync():
        assert count(model, 2)[0] == 2
    assert count(model, 2)[0] == 0
    assert count(model, 2, torch.ones(4, 2, requires_grad=True))[0] == 2
    model.close()


class Whose(nn.Module):
    """Returns in whose process each row was computed; may keep an object."""

    def __init__(self, keeps=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.keeps = keeps

    def forward(self, x):
        return x * self.weight, torch.full((len(x),), os.getpid())


class Memory:
    """In which a module might keep something."""


@pytest.mark.parametrize(
    ("short_seconds", "keeps", "is_own"),
    [(1e9, None, True), (1e9, Memory(), False), (0.0, None, False)],
    ids=["short", "may keep something", "long"],
)
def test_short_passes_of_a_fork_are_the_callers_if_all_is_in_plain_sight(
    monkeypatch, short_seconds, keeps, is_own
):
    monkeypatch.setattr(base, "SHORT_SECONDS", short_seconds)
    model, x = DataParallel(Whose(keeps), ["fork"] * 2), torch.ones(4, 1)
    for _ in range(own_passes._QUIET_PASSES + 1):
        model.zero_grad()
        outputs, pids = model(x)
        outputs.sum().backward()
        assert model.module.weight.grad.tolist() == [4]
    mine, others = pids.chunk(2)
    assert mine.tolist() == [os.getpid()] * 2
    assert (others.tolist() == mine.tolist()) == is_own
    assert model.slots[0].statistics.passes == own_passes._QUIET_PASSES + 1
    model.close()


def test_an_own_pass_of_a_fork_draws_the_numbers_that_the_fork_would(monkeypatch):
    monkeypatch.setattr(base, "SHORT_SECONDS", 1e9)
    model, x, drawn = DataParallel(Noise(), ["fork"] * 2), torch.ones(4, 2), []
    with torch.random.fork_rng():
        for _ in range(own_passes._QUIET_PASSES + 2):
            torch.manual_seed(1)
            output = model(x)
            drawn.append(output.detach())
            output.sum().backward()
            drawn.append(torch.rand(2))
    assert all(torch.equal(each, drawn[0]) for each in drawn[::2])
    assert all(torch.equal(each, drawn[1]) for each in drawn[1::2])
    assert not torch.equal(*drawn[0].chunk(2))
    model.close()
