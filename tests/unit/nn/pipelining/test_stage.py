"""One stage goes forward and backward over micro-batches, and keeps no more than it must."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from lockstitch import rpc
from lockstitch.autograd.context import DistAutogradContext
from lockstitch.autograd.stitch import stitch_receive
from lockstitch.ids import GlobalId
from lockstitch.modes import Modes
from lockstitch.nn.pipelining.graphs import Gradients, Values
from lockstitch.nn.pipelining.skips import SkipReference
from lockstitch.nn.pipelining.stage import MicroBatch, Stage, StageOptions, owned
from lockstitch.nn.slots.lifting import SINGLE, Hole
from lockstitch.testing import LocalCluster


class Cluster:
    """What a stage gets from others."""

    def fetch(self, skip: SkipReference) -> torch.Tensor:
        return torch.full((2,), float(skip.number))


def make_stage(module: nn.Module, **options) -> tuple[Stage, DistAutogradContext]:
    context = DistAutogradContext(1, None)
    given = StageOptions(1, context, Modes.of_this_thread(), **options)
    return Stage(module, given, Cluster().fetch), context


def micro_batch(*tensors: torch.Tensor, number=0, wanted=True, kwargs=None, **more) -> MicroBatch:
    skeleton = SINGLE if len(tensors) == 1 else tuple(Hole(i) for i in range(len(tensors)))
    values = Values(skeleton, list(tensors), [wanted] * len(tensors))
    return MicroBatch(number, values, kwargs or {}, seed=7, **more)


def test_gradients_of_inputs_are_returned_and_those_of_parameters_kept():
    module = nn.Linear(3, 2)
    stage, context = make_stage(module)
    x = torch.randn(4, 3)
    output = stage.forward(micro_batch(x))
    assert output.wanted == [True]
    found = stage.backward(0, Gradients([torch.ones(4, 2)]))
    torch.testing.assert_close(found.inputs[0], torch.ones(4, 2) @ module.weight)
    torch.testing.assert_close(context.gradients[module.weight], torch.ones(2, 4) @ x)
    assert module.weight.grad is None


def test_what_is_known_of_leaves_is_kept_from_one_micro_batch_to_the_next():
    module = nn.Linear(3, 2)
    stage, _ = make_stage(module)
    for number in (0, 1):
        stage.forward(micro_batch(torch.randn(4, 3), number=number))
        known = [get_gradient_edge(each).node.metadata for each in module.parameters()]
        assert all(bool(each) is (number == 1) for each in known)
        stage.backward(number, Gradients([torch.ones(4, 2)]))


@pytest.mark.parametrize("splits", [False, True])
def test_leaves_may_differ_from_one_micro_batch_to_the_next(splits):
    """Among them one that is no parameter of the module, and one with a hook that comes later."""
    apart = torch.full((3,), 2.0, requires_grad=True)
    seen = []

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            kind = int(x.sum()) % 3
            y = self.second(x) if kind == 1 else self.first(x)
            return torch.tanh(y * apart if kind == 2 else y + x)

    def go_back(stage: Stage, number: int):
        gradients = Gradients([torch.ones(2, 3)])
        if not splits:
            return stage.backward(number, gradients)
        found = stage.backward_for_inputs(number, gradients)
        stage.backward_for_weights(number)
        return found

    module = Mixed()
    stage, context = make_stage(module)
    leaves = [*module.parameters(), apart]
    for number in range(6):
        if number == 3:
            node = get_gradient_edge(module.first.weight).node
            node.register_hook(lambda _inputs, outputs: seen.append(outputs[0].clone()))
        x = torch.full((2, 3), (number + 0.5) / 6)
        wanted = x.clone().requires_grad_()
        module(wanted).backward(torch.ones(2, 3))
        stage.forward(micro_batch(x, number=number))
        (found,) = go_back(stage, number).inputs
        assert torch.equal(found, wanted.grad)
    assert len(seen) == 4
    for leaf in leaves:
        assert torch.equal(context.gradients[leaf], leaf.grad)


def test_what_a_later_micro_batch_gets_from_elsewhere_is_refused():
    def forward(_, x):
        if x.sum() < 1:
            return x * 2
        return x * stitch_receive(GlobalId(0, 0, 0), [torch.ones(3)])[0]

    stage, _ = make_stage(type("Fetching", (nn.Module,), {"forward": forward})())
    for number in (0, 1):
        stage.forward(micro_batch(torch.full((3,), float(number)), number=number))
    stage.backward(0, Gradients([torch.ones(3)]))
    with pytest.raises(RuntimeError, match="call to another worker"):
        stage.backward(1, Gradients([torch.ones(3)]))


def test_a_graph_is_freed_by_its_backward_pass():
    class Noting(nn.Module):
        def forward(self, x):
            self.saved = weakref.ref(y := torch.exp(x))
            return y * 2

    module = Noting()
    stage, _ = make_stage(module)
    stage.forward(micro_batch(torch.zeros(2)))
    stage.backward(0, Gradients([torch.ones(2)]))
    assert module.saved() is None


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_module_may_write_to_its_input(recomputes):
    class Writes(nn.Module):
        def forward(self, x):
            return torch.exp(x.mul_(3))

    stage, _ = make_stage(Writes(), recomputes=recomputes)
    x = torch.full((2,), 0.5)
    output = stage.forward(micro_batch(x))
    found = stage.backward(0, Gradients([torch.ones(2)]))
    torch.testing.assert_close(output.tensors[0], torch.exp(torch.full((2,), 1.5)))
    torch.testing.assert_close(found.inputs[0], 3 * torch.exp(torch.full((2,), 1.5)))


def test_recomputing_draws_the_same_and_leaves_buffers_alone():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    plain, _ = make_stage(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)))
    stage, _ = make_stage(module, recomputes=True)
    x, gradient = torch.randn(8, 3), torch.randn(8, 3)
    outputs, found = [], []
    for each in (stage, plain):
        outputs.append(each.forward(micro_batch(x.clone())).tensors[0])
        found.append(each.backward(0, Gradients([gradient])).inputs[0])
    assert torch.equal(*outputs)
    assert torch.equal(*found)
    assert module[0].num_batches_tracked == 1


def test_recomputing_goes_on_from_the_buffers_that_there_were():
    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            y = x * self.scale.clone()
            self.scale += 1
            return y

    module = Scales()
    stage, _ = make_stage(module, recomputes=True)
    for number in range(2):
        stage.forward(micro_batch(torch.ones(2), number=number))
    found = [stage.backward(number, Gradients([torch.ones(2)])).inputs[0] for number in range(2)]
    assert [each.tolist() for each in found] == [[1, 1], [2, 2]]
    assert module.scale == 3


def test_random_numbers_are_the_micro_batchs_own():
    stage, _ = make_stage(nn.Dropout(0.5))
    state = torch.get_rng_state()
    first, second = (
        stage.forward(micro_batch(torch.ones(50), number=number)).tensors[0] for number in (0, 1)
    )
    assert torch.equal(first, second)  # of one seed
    assert torch.equal(torch.get_rng_state(), state)


def test_outputs_that_share_memory_are_sent_apart():
    class Doubles(nn.Module):
        def forward(self, x):
            return x, x.view(-1), x[0]

    stage, _ = make_stage(Doubles())
    tensors = stage.forward(micro_batch(torch.ones(2, 2))).tensors
    assert len({each.untyped_storage().data_ptr() for each in tensors}) == 3
    found = stage.backward(0, Gradients([torch.ones(2, 2), torch.ones(4), torch.ones(2)]))
    assert found.inputs[0].tolist() == [[3, 3], [2, 2]]


def test_what_may_be_fetched_later_is_no_buffer_that_the_next_micro_batch_changes():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            self.count += 1
            return x, rpc.RRef(self.count)

    with LocalCluster(1) as cluster, cluster[0].active():
        stage, _ = make_stage(Counts())
        for number in range(2):
            stage.forward(micro_batch(torch.ones(2), number=number))
        lent = [stage.stash.lend(SkipReference(1, number, 0, False), 2) for number in range(2)]
    assert [each.tolist() for each in lent] == [[1, 1], [2, 2]]


def test_results_are_not_memory_that_the_module_writes_to_again():
    class Reuses(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.zeros(2)

        def forward(self, x):
            return torch.mul(x, 2, out=self.out), x * 3

    options = StageOptions(1, None, replace(Modes.of_this_thread(), is_grad_enabled=False))
    stage = Stage(Reuses(), options, Cluster().fetch)
    found = stage.forward(micro_batch(torch.ones(2))).tensors
    places = [each.data_ptr() for each in found]
    kept = owned(found)
    stage.forward(micro_batch(torch.full((2,), 5.0)))
    assert [each.tolist() for each in kept] == [[2, 2], [3, 3]]
    assert kept[1].data_ptr() == places[1]  # nobody else has it: no copy


def test_what_is_fetched_gets_a_gradient_of_its_own():
    class Adds(nn.Module):
        def forward(self, x, skips):
            return x + skips[0].to_here() * 2 + skips[0].to_here() + skips[1].to_here()

    stage, _ = make_stage(Adds())
    skips = [SkipReference(0, 0, 4, True), SkipReference(0, 0, 5, False)]
    values = Values((SINGLE, skips), [torch.zeros(2)], [True])
    output = stage.forward(MicroBatch(0, values, {}, 7))
    assert output.tensors[0].tolist() == [17, 17]
    found = stage.backward(0, Gradients([torch.ones(2)]))
    assert {skip.number: each.tolist() for skip, each in found.skips.items()} == {4: [3, 3]}


def test_a_loss_is_one_number_with_a_history():
    stage, _ = make_stage(nn.Identity(), is_last=True, loss_fn=lambda x: x)
    with pytest.raises(ValueError, match=r"a tensor of one element, not \(2,\)"):
        stage.forward(micro_batch(torch.ones(2)))
    stage, _ = make_stage(nn.Identity(), is_last=True, loss_fn=torch.sum)
    with pytest.raises(RuntimeError, match="the loss has no history"):
        stage.forward(micro_batch(torch.ones(2), wanted=False))


def test_keyword_arguments_and_tuples_reach_the_module():
    class Adds(nn.Module):
        def forward(self, a, b, *, factor):
            return (a + b) * factor

    stage, _ = make_stage(Adds())
    given = micro_batch(torch.ones(2), torch.ones(2), kwargs={"factor": 3})
    assert stage.forward(given).tensors[0].tolist() == [6, 6]


def test_calls_that_want_gradients_elsewhere_are_refused():
    class Calls(nn.Module):
        def forward(self, x):
            (received,) = stitch_receive(GlobalId(5, 0, 1), [torch.ones(2)])
            return x + received

    stage, _ = make_stage(Calls())
    stage.forward(micro_batch(torch.ones(2)))
    with pytest.raises(RuntimeError, match=r"call to another worker \(rank 5"):
        stage.backward(0, Gradients([torch.ones(2)]))
