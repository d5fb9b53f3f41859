"""A module is taken apart, and made into stages that do together what it does."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from lockstitch.nn.pipelining.tracing import GraphPieces, Pieces, SequentialPieces, take_apart


def all_cuts(count: int, stages: int) -> list[list[range]]:
    if stages == 1:
        return [[range(count)]]
    return [
        [*before, range(at, count)]
        for at in range(stages - 1, count)
        for before in all_cuts(at, stages - 1)
    ]


def try_all(pieces: Pieces, *example: object) -> int:
    """How many pieces there are."""
    tried = []

    def try_one(run, args, parameters):
        tried.append(parameters)
        return run(*args)

    pieces.run(example, try_one)
    return len(tried)


def run(stages: list[nn.Module], *args: object) -> object:
    value: object = args
    for stage in stages:
        value = stage(*value) if isinstance(value, tuple) else stage(value)
    return value


class Block(nn.Module):
    """Residual, with a parameter and a buffer of its own, and sizes that are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("shift", torch.rand(4))

    def forward(self, x):
        rows = x.size(0)
        return x + self.layers(x) * self.scale + self.shift / rows


class Model(nn.Module):
    """Several arguments and outputs, and a default."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x, y=None, *, factor=2.0):
        x = self.first(x)
        z = self.second(x) * factor
        return {"z": z, "sum": x + z}, [z.mean(), y]


def same(one, other) -> bool:
    return str(one) == str(other)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_all_cuts_of_a_graph_give_what_the_module_gives(stages):
    model, x = Model(), torch.randn(3, 4)
    pieces = take_apart(model)
    assert isinstance(pieces, GraphPieces)
    count = try_all(pieces, x)
    for cuts in all_cuts(count, stages)[::3]:
        made = pieces.stages(cuts)
        assert same(run(made, x), model(x))
        names = [name for stage in made for name in dict(stage.named_parameters())]
        assert set(names) == set(dict(model.named_parameters()))


def test_keyword_arguments_reach_the_first_stage():
    model, x = Model(), torch.randn(3, 4)
    first, *others = take_apart(model).stages([range(4), range(4, 99)][:1])
    assert isinstance(first, nn.Module)
    pieces = take_apart(model)
    count = try_all(pieces, x)
    made = pieces.stages([range(5), range(5, count)])
    assert same(run(made[1:], *made[0](x, y=7, factor=3.0)), model(x, y=7, factor=3.0))
    assert others == []


def test_cuts_are_where_one_value_goes_across():
    pieces = take_apart(Model())
    try_all(pieces, torch.randn(3, 4))
    groups = pieces.cuts()
    for group in groups[1:]:
        assert len(pieces._crossing(group.start)) == 1


def test_sequentials_within_are_taken_apart_and_names_are_kept():
    model = nn.Sequential(
        OrderedDict(
            embed=nn.Linear(4, 6),
            body=nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 6)),
            head=nn.Linear(6, 2),
        )
    )
    pieces = take_apart(model)
    assert isinstance(pieces, SequentialPieces)
    x = torch.randn(3, 4)
    assert try_all(pieces, x) == 5
    for cuts in all_cuts(5, 3):
        made = pieces.stages(cuts)
        assert torch.equal(run(made, x), model(x))
        states = [stage.state_dict() for stage in made]
        assert {name for state in states for name in state} == set(model.state_dict())


def test_a_tuple_between_parts_of_a_sequential_is_one_argument():
    class Last(nn.Module):
        def forward(self, given):
            return given[0][:, -1]

    model, x = nn.Sequential(nn.LSTM(3, 4, batch_first=True), Last()), torch.randn(2, 5, 3)
    pieces = take_apart(model)
    try_all(pieces, x)
    assert torch.equal(run(pieces.stages([range(1), range(1, 2)]), x), model(x))


class Chooses(nn.Module):
    """Cannot be traced."""

    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x


def test_an_operation_that_cannot_be_traced_is_named():
    with pytest.raises(
        ValueError, match=r"a Chooses cannot be cut.*in forward, `if x.sum\(\) > 0:`"
    ):
        take_apart(Chooses())


def test_a_submodule_that_cannot_be_traced_stays_whole():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Chooses(), nn.Linear(2, 2)

        def forward(self, x):
            return self.second(self.first(x) + 1)

    pieces = take_apart(Outer())
    assert try_all(pieces, torch.ones(1, 2)) == 3


def test_functions_that_would_not_hear_of_eval_are_refused():
    class Drops(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.5, self.training)

    with pytest.raises(ValueError, match="dropout gets `training` as a constant"):
        take_apart(Drops())
    take_apart(Drops().eval())


def test_variable_arguments_are_refused():
    class Any(nn.Module):
        def forward(self, *args):
            return args[0]

    with pytest.raises(ValueError, match=r"its forward method takes \*args"):
        take_apart(Any())


def test_a_sequential_is_tried_with_one_argument():
    with pytest.raises(ValueError, match="takes one argument, and the example has 2"):
        try_all(take_apart(nn.Sequential(nn.Linear(2, 2))), 1, 2)
