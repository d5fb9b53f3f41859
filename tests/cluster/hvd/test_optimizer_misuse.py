"""What cannot be right is told, with what to do instead."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from lockstitch import hvd
from lockstitch.collectives import LocalSessions
from tests.cluster.hvd.ranks import in_job, on_ranks
from tests.cluster.hvd.steps import OPTIMIZERS, batch, loss_of, model


def test_a_step_after_synchronize_warns_unless_it_skips():
    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("w", weight)], backward_passes_per_step=2
        )
        assert optimizer.backward_passes_per_step == 2
        assert optimizer._parameter_names == {weight: "w"}
        warned = []
        for is_skipping in (True, False, False):
            (weight * hvd.rank()).sum().backward()
            optimizer.synchronize()
            if len(warned) == 2:
                optimizer.zero_grad()  # what was synchronized is given up
            skipping = optimizer.skip_synchronize() if is_skipping else nullcontext()
            with warnings.catch_warnings(record=True) as found, skipping:
                warnings.simplefilter("always")
                optimizer.step()
            warned.append([str(each.message)[:23] for each in found])
        return weight.item(), warned

    message = "optimizer.step() called"
    with LocalSessions(1) as sessions:  # what is filtered is of the whole process
        assert sessions.run(in_job(program)) == [(0.0, [[], [message], []])]


def test_misuse_is_told():
    def program():
        net = model()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](net.parameters()))
        loss_of(net, *batch(0)).backward()
        with pytest.raises(AssertionError, match="backward_passes_per_step=1"):
            loss_of(net, *batch(0)).backward()
        optimizer.step()
        optimizer.set_backward_passes_per_step(2)
        for _ in range(2):
            loss_of(net, *batch(0)).backward()
        optimizer.step()

    on_ranks(2, program)


def test_zero_grad_while_gradients_are_under_way_is_told():
    def program():
        parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=1.0), op=hvd.Sum, groups=2
        )
        parameters[0].sum().backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
        assert optimizer.without_gradient() == ["noname.1"]

    on_ranks(2, program)


WRONG = {
    "twice": ({"named_parameters": lambda p: [("a", p[0]), ("a", p[1])]}, "twice"),
    "missing": ({"named_parameters": lambda p: [("a", p[0])]}, "1 parameters"),
    "no pairs": ({"named_parameters": lambda p: list(p)}, "pairs"),
    "passes": ({"backward_passes_per_step": lambda p: 0}, "at least 1"),
    "maximum": ({"op": lambda p: hvd.Max}, "hvd.Average, hvd.Sum or hvd.Adasum"),
    "predivide": (
        {"op": lambda p: hvd.Sum, "gradient_predivide_factor": lambda p: 2.0},
        "op=hvd.Average",
    ),
    "groups": ({"groups": lambda p: -1}, "negative"),
    "two groups": ({"groups": lambda p: [[p[0]], [p[0]]]}, "two groups"),
    "strangers": ({"groups": lambda p: [[torch.ones(1)]]}, "not the optimizer's"),
    "no tensors": ({"groups": lambda p: [["a"]]}, "lists of parameters"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    options, words = WRONG[case]

    def program():
        parameters = [nn.Parameter(torch.ones(1)) for _ in range(2)]
        chosen = {name: make(parameters) for name, make in options.items()}
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), **chosen)

    on_ranks(1, program)


def test_num_groups_is_the_older_word():
    def program():
        with pytest.warns(DeprecationWarning, match="groups"):
            hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model().parameters()), num_groups=2)

    on_ranks(1, program)


def test_a_class_in_place_of_an_optimizer_is_explained():
    with LocalSessions(1) as sessions:
        outcome = sessions.run(in_job(lambda: explanation_of_a_class()))
    assert outcome == ["optimizer is one that was made already"]


def test_what_is_no_optimizer_and_no_compression_are_explained():
    def program():
        model = torch.nn.Linear(2, 1)
        with pytest.raises(TypeError, match="not a Linear"):
            hvd.DistributedOptimizer(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(TypeError, match=r"hvd\.Compression\.fp16, .* not 'fp16'"):
            hvd.DistributedOptimizer(optimizer, compression="fp16")

    on_ranks(1, program)


def explanation_of_a_class():
    with pytest.raises(TypeError, match="not the class SGD") as caught:
        hvd.DistributedOptimizer(torch.optim.SGD)
    return str(caught.value).partition(",")[0]
