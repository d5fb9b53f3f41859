from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from torch import nn

from lockstitch import hvd
from tests.cluster.hvd.ranks import on_ranks


def model_of(rank):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(rank * 10 + number)
    return model


@pytest.mark.parametrize("form", ["state_dict", "named_parameters", "parameters"])
def test_parameters_become_those_of_the_root(form):
    def program():
        model = model_of(hvd.rank())
        hvd.broadcast_parameters(getattr(model, form)(), root_rank=1)
        return [parameter.detach().flatten()[0].item() for parameter in model.parameters()]

    assert on_ranks(3, program) == [[10.0, 11.0, 12.0, 13.0, 14.0, 15.0]] * 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "iterable"),
        (torch.ones(2), "iterable"),
        (nn.Linear(1, 1), r"model\.state_dict\(\)"),
        ({"a": 1}, "'a' is no"),
    ],
)
def test_what_are_no_parameters(wrong, words):
    def program():
        with pytest.raises(ValueError, match=words):
            hvd.broadcast_parameters(wrong, root_rank=0)

    on_ranks(1, program)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
    "adagrad": lambda p: torch.optim.Adagrad(p),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_resumes_with_the_state_of_the_root(kind):
    def program():
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = OPTIMIZERS[kind](model.parameters())
        if hvd.rank() == 0:  # has trained before; the others have no state yet
            optimizer.param_groups[0]["weight_decay"] = 0.25
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
        before = [p.detach().clone() for p in model.parameters()]
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return [p.detach() for p in model.parameters()], optimizer.param_groups[0]["weight_decay"]

    (first, decay), (second, other_decay) = on_ranks(2, program)
    assert decay == other_decay == 0.25
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_parameters_of_an_optimizer_without_state_have_gradients_afterwards():
    def program():
        fixed, free = nn.Parameter(torch.ones(1), requires_grad=False), nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([fixed, free], lr=1.0, weight_decay=0.5)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return fixed.grad, free.grad.tolist(), free.tolist()

    assert on_ranks(2, program) == [(None, [0.0, 0.0], [1.0, 1.0])] * 2


def test_lbfgs_is_refused():
    def program():
        optimizer = torch.optim.LBFGS([torch.ones(1, requires_grad=True)])
        with pytest.raises(ValueError, match="LBFGS"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    on_ranks(1, program)


def test_objects_of_any_kind():
    def program():
        rank = hvd.rank()
        received = hvd.broadcast_object({"rank": rank, "f": lambda: rank}, root_rank=1, name="o")
        assert received["f"]() == 1
        again = hvd.broadcast_object([rank])
        everybody = hvd.allgather_object("x" * rank)
        return received["rank"], again, everybody

    assert on_ranks(3, program) == [(1, [0], ["", "x", "xx"])] * 3


def test_the_state_of_an_optimizer_is_asked_of_itself():
    def program():
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        with pytest.raises(TypeError, match="the optimizer itself, not dict"):
            hvd.broadcast_optimizer_state(optimizer.state_dict(), root_rank=0)

    on_ranks(1, program)


def test_no_rank_waits_for_an_object_that_cannot_be_pickled():
    def program():
        mine = threading.Lock() if hvd.rank() == 1 else "fine"
        ways = [partial(hvd.broadcast_object, mine, 1), partial(hvd.allgather_object, mine, "all")]
        for way in ways:
            expected = TypeError if hvd.rank() == 1 else hvd.exceptions.HorovodInternalError
            with pytest.raises(expected, match=r"pickle.*lock|cannot be pickled on ranks \[1\]"):
                way()
        return hvd.allgather_object(hvd.rank())

    assert on_ranks(3, program) == [[0, 1, 2]] * 3
