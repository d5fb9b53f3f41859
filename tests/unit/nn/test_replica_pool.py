"""A replica pool makes its slots when needed, tells them what has changed, and replaces them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.nn.replica_pool import ReplicaPool
from lockstitch.nn.slots.base import Gradients, Outcome, Slot, SlotStatistics
from lockstitch.nn.slots.execution import Executor
from lockstitch.nn.slots.replicas import matching, replicate_here


class RecordingSlot(Slot):
    """A slot without a thread: it works when it is asked for the result, and notes its requests."""

    def __init__(self, number, blueprint):
        self.name = f"recording slot {number}"
        self.statistics = SlotStatistics()
        replica = replicate_here(blueprint.module)
        leaves = matching(blueprint.module, replica, blueprint.leaves)
        self.executor = Executor(replica, leaves)
        self.requests = []
        self.orders = {}
        self.released = []
        self.alive = True

    def start(self, request):
        self.requests.append(request)

    def finish(self, number) -> Outcome:
        (request,) = [each for each in self.requests if each.number == number]
        return self.executor.forward(request)

    def start_backward(self, order):
        self.orders[order.number] = order

    def finish_backward(self, number) -> Gradients:
        return self.executor.backward(self.orders.pop(number))

    def collect(self):
        return self.executor.collect()

    def release(self, number):
        self.released.append(number)
        self.executor.release(number)

    @property
    def is_alive(self):
        return self.alive

    def close(self):
        self.alive = False


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]))
        self.unused = nn.Parameter(torch.tensor([1.0]))
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, x):
        return x * self.weight + self.shift


@pytest.fixture
def module():
    return Scale()


@pytest.fixture
def pool(module):
    pool = ReplicaPool(module, [RecordingSlot, RecordingSlot])
    yield pool
    pool.close()


PARTS = [((torch.full((1,), float(i)),), {}) for i in (1, 2, 3)]


def values(pool, parts=PARTS):
    return [output.item() for output in pool.run(parts)]


def test_slots_are_made_for_the_first_call_and_kept(pool):
    assert (pool.slots, pool.names) == ([], ["slot 0 (caller)"])
    assert values(pool) == [2, 4, 6]
    slots = pool.slots
    assert values(pool) == [2, 4, 6]
    assert pool.slots == slots
    assert pool.names == ["slot 0 (caller)", "recording slot 1", "recording slot 2"]


def test_only_as_many_are_made_as_there_are_parts(pool):
    assert values(pool, PARTS[:2]) == [2, 4]
    assert [slot.name for slot in pool.slots] == ["recording slot 1"]


def test_a_dead_one_is_replaced_and_the_others_stay(pool):
    values(pool)
    first, second = pool.slots
    first.alive = False
    assert values(pool) == [2, 4, 6]
    assert pool.slots[0] is not first
    assert pool.slots[1] is second


def test_other_parameters_mean_other_slots(pool, module):
    values(pool)
    before = pool.slots
    module.weight = nn.Parameter(torch.tensor([5.0]))
    assert values(pool) == [5, 10, 15]
    assert not any(slot.alive for slot in before)


def test_a_buffer_is_told_once_to_each(pool, module):
    values(pool)
    module.shift += 1
    assert values(pool) == [3, 5, 7]
    assert values(pool) == [3, 5, 7]
    for slot in pool.slots:
        assert [bool(request.changes) for request in slot.requests] == [False, True, False]


def test_gradients_are_summed_and_unused_parameters_get_zeros(pool, module):
    torch.cat(pool.run(PARTS)).sum().backward()
    assert module.weight.grad.tolist() == [6]
    assert module.unused.grad.tolist() == [0]


def test_unused_parameters_get_none_where_that_is_wanted(module):
    pool = ReplicaPool(module, [RecordingSlot], fills_unused=False)
    torch.cat(pool.run(PARTS[:2])).sum().backward()
    assert module.unused.grad is None
    pool.close()


def test_a_parameter_that_is_changed_before_backward_is_an_error(pool, module):
    outputs = torch.cat(pool.run(PARTS))
    with torch.no_grad():
        module.weight += 1
    with pytest.raises(RuntimeError, match=r"parameter of shape \(1,\) is at version 1; expected"):
        outputs.sum().backward()


def test_a_second_backward_pass_is_an_error_unless_the_graph_was_kept(pool, module):
    loss = torch.cat(pool.run(PARTS)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert module.weight.grad.tolist() == [12]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_gradients_that_were_kept_are_delivered_once(pool, module):
    pool.syncs_gradients = False
    for _ in range(2):
        torch.cat(pool.run(PARTS)).sum().backward()
    assert module.weight.grad.tolist() == [2]  # slot 0's
    pool.syncs_gradients = True
    pool.deliver_kept_gradients()
    pool.deliver_kept_gradients()
    assert module.weight.grad.tolist() == [12]


def test_slots_hear_when_nobody_can_go_back_any_more(pool):
    outputs = pool.run(PARTS)
    (slot, _) = pool.slots
    (request,) = slot.requests
    assert slot.released == []
    del outputs
    assert slot.released == [request.number]


def test_gradients_of_gradients_are_those_of_the_whole(pool, module):
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    parts = [((piece,), {}) for piece in x.chunk(3)]
    (gradient,) = torch.autograd.grad(torch.cat(pool.run(parts)).pow(2).sum(), x, create_graph=True)
    gradient.sum().backward()  # 2 · weight² · x, summed: its derivative is 4 · weight · sum(x)
    assert module.weight.grad.tolist() == [48]


def test_after_close_there_are_no_slots_until_the_next_call(pool):
    values(pool)
    before = pool.slots
    pool.close()
    pool.close()
    assert pool.slots == []
    assert not any(slot.alive for slot in before)
    assert values(pool) == [2, 4, 6]


class Mover(RecordingSlot):
    """A slot whose making moves the parameters, as that of a forked one does."""

    def __init__(self, number, blueprint):
        for leaf in blueprint.leaves:
            if not hasattr(leaf, "has_moved"):
                leaf.has_moved = True
                leaf.data = leaf.data.clone()
        super().__init__(number, blueprint)


@pytest.mark.parametrize(
    "factories", [[RecordingSlot, Mover], [Mover, RecordingSlot], [Mover, Mover]]
)
def test_all_slots_look_at_where_the_parameters_are(module, factories):
    pool = ReplicaPool(module, factories)
    assert values(pool, PARTS[:2]) == [2, 4]  # the second slot is made later
    assert values(pool) == [2, 4, 6]
    with torch.no_grad():
        module.weight += 1
    assert values(pool) == [3, 6, 9]
    pool.close()


def test_slots_given_up_with_passes_under_way_end_after_these(module):
    pool = ReplicaPool(module, [RecordingSlot, Mover])
    first = torch.cat(pool.run(PARTS[:2]))
    (slot,) = pool.slots
    second = torch.cat(pool.run(PARTS))
    assert slot not in pool.slots
    module.weight, old = nn.Parameter(torch.tensor([5.0])), module.weight
    assert values(pool) == [5, 10, 15]
    (first.sum() + second.sum()).backward()
    assert old.grad.tolist() == [9]
    del first, second
    assert not pool.in_flight
    pool.close()


def test_slots_given_up_with_gradients_that_they_have_kept_deliver_them(module):
    pool = ReplicaPool(module, [RecordingSlot, Mover])
    pool.syncs_gradients = False
    torch.cat(pool.run(PARTS[:2])).sum().backward()
    torch.cat(pool.run(PARTS)).sum().backward()  # the second slot, which is new, moves parameters
    old, module.weight = module.weight, nn.Parameter(torch.tensor([5.0]))
    module.unused.requires_grad_(requires_grad=False)
    values(pool)
    pool.deliver_kept_gradients()
    assert old.grad.tolist() == [9]
    pool.close()


def test_a_parameter_that_was_frozen_meanwhile_gets_what_was_kept(pool, module):
    pool.syncs_gradients = False
    torch.cat(pool.run(PARTS)).sum().backward()
    module.weight.requires_grad_(requires_grad=False)
    pool.deliver_kept_gradients()
    assert module.weight.grad.tolist() == [6]
