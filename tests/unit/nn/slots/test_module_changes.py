"""What changes in a module is seen: told to the slots, or a reason to make them anew."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.nn.slots.base import Changes
from lockstitch.nn.slots.module_changes import (
    ChangeTracker,
    Deleted,
    apply_changes,
    places_of_others,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.factor = 1
        self.names = ["a"]
        self.last = None
        self.mask = torch.ones(2)
        self.masks = [torch.ones(2)]
        self.elsewhere = torch.ones(2, device="meta")
        self.sparse = torch.ones(2).to_sparse()
        self.view = self.linear.weight.t()


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def tracker(net):
    return ChangeTracker(net)


def test_nothing_has_changed(net, tracker):
    known = tracker.known_state()
    assert tracker.look()
    assert not tracker.changes(known)


def test_plain_attributes_are_told_once(net, tracker):
    known = tracker.known_state()
    net.factor = 2
    net.eval()
    del net.last
    assert tracker.look()
    changes = tracker.changes(known)
    assert set(changes.attributes) == {
        (0, "factor", 2),
        (0, "last", Deleted),
        *((i, "training", False) for i in range(3)),
    }
    assert tracker.look()
    assert not tracker.changes(known)


def test_each_slot_is_told_what_it_has_missed(net, tracker):
    known = tracker.known_state(), tracker.known_state()
    net.factor = 2
    assert tracker.look()
    tracker.changes(known[0])
    net.factor = 3
    assert tracker.look()
    assert [value for *_, value in tracker.changes(known[0]).attributes] == [3]
    assert [value for *_, value in tracker.changes(known[1]).attributes] == [3]


def test_lists_of_plain_values_are_told(net, tracker):
    known = tracker.known_state()
    net.names.append("b")
    assert tracker.look()
    assert tracker.changes(known).attributes == [(0, "names", ["a", "b"])]
    assert tracker.look()


def test_all_buffers_of_a_submodule_are_told_together(net, tracker):
    known = tracker.known_state()
    net.norm(torch.randn(4, 2))  # writes running_mean without a new version
    assert tracker.look()
    assert [number for number, _ in tracker.changes(known).others] == [0, 1, 2]
    assert not tracker.changes(known).others
    net.norm.running_var = torch.ones(2)
    assert len(tracker.changes(known).others) == 3


def replace_parameter(net):
    net.linear.weight = nn.Parameter(torch.ones(2, 2))


def move_parameter(net):
    net.linear.weight.data = torch.ones(2, 2)


def freeze(net):
    net.linear.weight.requires_grad_(requires_grad=False)


def transpose(net):
    net.linear.weight.data = net.linear.weight.data.t()


def replace_submodule(net):
    net.linear = nn.Linear(2, 2)


def add_submodule(net):
    net.other = nn.Linear(2, 2)


def add_hook(net):
    net.linear.register_forward_hook(lambda *_: None)


def keep_a_tensor(net):
    net.last = torch.zeros(2)


def write_to_a_tensor(net):
    net.mask.mul_(2)


def write_to_a_tensor_in_a_list(net):
    net.masks[0].mul_(2)


def swap_data_of_a_tensor(net):
    net.mask.data = torch.zeros(2)


def add_buffer(net):
    net.register_buffer("other", torch.zeros(2))


@pytest.mark.parametrize(
    "change",
    [
        replace_parameter,
        move_parameter,
        transpose,
        freeze,
        replace_submodule,
        add_submodule,
        add_hook,
        keep_a_tensor,
        write_to_a_tensor,
        write_to_a_tensor_in_a_list,
        swap_data_of_a_tensor,
        add_buffer,
    ],
)
def test_slots_are_made_anew_for(net, tracker, change):
    change(net)
    assert not tracker.look()
    assert ChangeTracker(net).look()


def test_an_optimizers_step_is_no_change(net, tracker):
    with torch.no_grad():
        net.linear.weight.add_(1)
    assert tracker.look()


def test_a_tensor_to_which_the_forward_pass_writes_is_its_own_affair(net, tracker):
    net.mask.mul_(2)
    tracker.settle()
    assert tracker.look()


def test_what_a_module_keeps_of_each_pass_is_its_own_affair(net, tracker):
    assert tracker.is_quiet
    keep_a_tensor(net)  # in the pass of slot 0
    tracker.settle()
    assert not tracker.is_quiet
    assert tracker.look()
    assert not tracker.changes(tracker.known_state())
    keep_a_tensor(net)  # by somebody else
    assert not tracker.look()


def test_a_state_that_is_set_back_between_calls_is_told(net, tracker):
    known = tracker.known_state()
    net.state = {"h": None}
    net.counts = []
    assert tracker.look()
    tracker.changes(known)
    for _ in range(2):
        keep_a_tensor(net)  # in the pass of slot 0
        net.state["h"] = torch.zeros(2)
        net.factor += 1
        net.counts.append(torch.zeros(()))
        tracker.settle()
        net.last, net.state["h"], net.factor = None, None, 1
        net.counts.clear()
        assert tracker.look()
        attributes = {name: value for _, name, value in tracker.changes(known).attributes}
        assert attributes == {"last": None, "state": {"h": None}, "factor": 1, "counts": []}


def test_what_a_module_counts_is_told(net, tracker):
    known = tracker.known_state()
    net.factor += 1
    net.names.append("b")
    net.sizes = [3]
    tracker.settle()
    assert tracker.look()
    attributes = {name: value for _, name, value in tracker.changes(known).attributes}
    assert attributes == {"factor": 2, "names": ["a", "b"], "sizes": [3]}


def test_hooks_of_a_forward_pass_are_a_reason_to_make_slots_anew(net, tracker):
    add_hook(net)
    tracker.settle()
    assert not tracker.look()


def test_copies_for_slots_are_no_tensors_of_inference_mode():
    module = nn.BatchNorm1d(2)
    tracker = ChangeTracker(module)
    known = tracker.known_state()
    with torch.inference_mode():
        module.running_mean.add_(1)
        changes = tracker.changes(known)
    assert changes.others
    assert not any(tensor.is_inference() for _, tensor in changes.others)


def test_a_buffer_whose_changes_nobody_counts_is_told_each_time():
    module = nn.Module()
    with torch.inference_mode():
        module.register_buffer("shift", torch.zeros(2))
    tracker = ChangeTracker(module)
    known = tracker.known_state()
    for value in (1.0, 2.0):
        with torch.inference_mode():
            module.shift.fill_(value)
        ((_, copied),) = tracker.changes(known).others
        assert copied.tolist() == [value, value]


def test_batch_statistics_without_a_counter_are_told_each_time():
    module = nn.Module()
    module.register_buffer("mean", torch.zeros(2))
    module.register_buffer("variance", torch.ones(2))
    tracker = ChangeTracker(module)
    known = tracker.known_state()
    for _ in range(2):  # no version tells of it
        nn.functional.batch_norm(torch.rand(4, 2), module.mean, module.variance, training=True)
        copied = [each for _, each in tracker.changes(known).others]
        assert [each.tolist() for each in copied] == [
            module.mean.tolist(),
            module.variance.tolist(),
        ]


def test_other_buffers_are_told_when_they_have_changed():
    module = nn.BatchNorm1d(2)
    module.register_buffer("frequencies", torch.ones(2))
    other = nn.Module()
    other.register_buffer("frequencies", torch.ones(2))
    tracker = ChangeTracker(nn.ModuleList([module, other]))
    assert not tracker.changes(tracker.known_state()).others


def test_a_graph_that_has_saved_a_buffer_keeps_it_as_it_was():
    module = nn.BatchNorm1d(2).eval()
    x = torch.ones(2, 2, requires_grad=True)
    places, also = places_of_others([module]), [module.running_var]
    output = x * module.running_var
    number = next(i for i, (_, name) in enumerate(places) if name == "running_var")
    apply_changes([module], places, Changes(others=[(number, torch.full((2,), 3.0))]))
    assert also[0] is module.running_var
    assert module.running_var.tolist() == [3, 3]
    output.sum().backward()
    assert x.grad.tolist() == [[1, 1], [1, 1]]


def test_a_buffer_in_the_memory_of_a_parameter_is_told_each_time():
    module = nn.Linear(2, 2)
    module.register_buffer("beside", torch.zeros(2))
    module.register_buffer("same", module.bias.data)
    tracker = ChangeTracker(module)
    known = tracker.known_state()
    for value in (1.0, 2.0):
        with torch.no_grad():
            module.bias.fill_(value)
        sent = dict(tracker.changes(known).others)
        assert sent[tracker.others.index((module._buffers, "same"))].tolist() == [value] * 2


def test_a_buffer_that_gets_into_the_memory_of_a_parameter_is_told_each_time_from_then_on():
    module = nn.Linear(2, 2)
    module.register_buffer("same", torch.zeros(2))
    tracker = ChangeTracker(module)
    known = tracker.known_state()
    module.same = module.bias.data
    for value in (1.0, 2.0):
        with torch.no_grad():
            module.bias.fill_(value)
        ((_, told),) = tracker.changes(known).others
        assert told.tolist() == [value] * 2


@pytest.mark.parametrize("data", [torch.ones(2, 2), torch.zeros(2, 2).t(), torch.zeros(1)])
def test_a_buffer_with_other_data_is_told_although_its_version_is_the_same(data):
    module = nn.Module()
    module.register_buffer("state", torch.zeros(2, 2))
    tracker = ChangeTracker(module)
    known = tracker.known_state()
    module.state.data = data
    ((_, told),) = tracker.changes(known).others
    assert told.tolist() == data.tolist()
    assert not tracker.changes(known)


def beside_a_buffer() -> nn.Module:
    """Attributes that are a buffer, lie within it, and have more than it has."""
    module = nn.Module()
    state = torch.zeros(6)
    module.register_buffer("state", state[:4])
    module.same, module.within, module.more = module.state, state.data[1:3], state[2:]
    return module


def test_a_buffer_that_is_an_attribute_too_is_told_once():
    module = beside_a_buffer()
    del module.within, module.more
    tracker = ChangeTracker(module)
    known = tracker.known_state()
    module.same += 1
    assert tracker.look()
    ((_, told),) = tracker.changes(known).others
    assert told.tolist() == [1] * 4


@pytest.mark.parametrize("name", ["state", "same", "within", "more"])
@pytest.mark.parametrize("left", ["within", "more"])
def test_writes_to_memory_that_a_buffer_and_an_attribute_have_in_common_are_seen(name, left):
    module = beside_a_buffer()
    if name == "more" != left:
        return  # another memory
    for each in {"within", "more"} - {name, left}:
        delattr(module, each)
    tracker = ChangeTracker(module)
    assert tracker.look()
    getattr(module, name).add_(1)
    assert not tracker.look()


def test_a_buffer_that_another_takes_the_place_of_is_no_buffer_any_more():
    for leave in (
        lambda module: setattr(module, "state", torch.ones(4)),
        lambda module: delattr(module, "state"),
    ):
        module = beside_a_buffer()
        del module.within, module.more
        tracker = ChangeTracker(module)
        leave(module)
        assert not tracker.look()


def test_sparse_attributes_beside_sparse_buffers_are_seen():
    module = nn.Module()
    module.register_buffer("state", torch.eye(2).to_sparse())
    module.register_buffer("empty", torch.zeros(0))
    module.sparse = torch.eye(2).to_sparse()
    tracker = ChangeTracker(module)
    assert tracker.look()
    module.sparse.mul_(2)
    assert not tracker.look()


def test_how_large_the_copies_are_is_told_also_of_sparse_ones():
    changes = Changes(others=[(0, torch.ones(3)), (1, None), (2, torch.eye(2).to_sparse())])
    assert changes.nbytes == 12 + 16
