"""Structures cut and joined, compared with torch's own code and with plain formulas."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.parallel import scatter_gather as original

from lockstitch.nn.parallel import Replicate, Shard, gather, scatter, scatter_kwargs

Pair = namedtuple("Pair", "left right")
X = torch.arange(10.0).view(5, 2)
Y = torch.arange(5)
THING = object()


@dataclass
class Batch:
    x: Any
    note: str = "n"


def plain(thing: Any) -> Any:
    """Tensors as lists, so that structures can be compared."""
    if isinstance(thing, torch.Tensor):
        return ("tensor", thing.tolist())
    if isinstance(thing, Pair):
        return ("pair", *map(plain, thing))
    if isinstance(thing, (list, tuple)):
        return type(thing)(map(plain, thing))
    if isinstance(thing, dict):
        return type(thing), [(key, plain(value)) for key, value in thing.items()]
    return thing


STRUCTURES = [
    X,
    (X, Y),
    [X, [Y]],
    {"x": X, "rest": (Y, 3)},
    OrderedDict(b=X, a=None),
    Pair(X, Y),
    (X, "text", THING, (), [], {}),
    (1, 2),
    THING,
    [],
    {"a": [1, {"b": THING}]},
]


@pytest.fixture
def original_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's walk over structures, with chunk and cat where it would ask for GPUs."""

    class Scatter:
        @staticmethod
        def apply(places: Any, sizes: Any, dim: int, tensor: torch.Tensor) -> Any:
            return tensor.chunk(len(places), dim)

    class Gather:
        @staticmethod
        def apply(place: Any, dim: int, *tensors: torch.Tensor) -> Any:
            return torch.cat(tensors, dim)

    monkeypatch.setattr(original, "Scatter", Scatter)
    monkeypatch.setattr(original, "Gather", Gather)


@pytest.mark.usefixtures("original_on_cpu")
@pytest.mark.parametrize("places", [1, 2, 4, 7])
@pytest.mark.parametrize("structure", STRUCTURES, ids=range(len(STRUCTURES)))
def test_scatter_is_the_originals(structure: Any, places: int) -> None:
    ours = scatter(structure, list(range(places)))
    theirs = original.scatter(structure, list(range(places)))
    assert type(ours) is type(theirs)
    assert plain(ours) == plain(theirs)


@pytest.mark.usefixtures("original_on_cpu")
@pytest.mark.parametrize(
    ("inputs", "kwargs"),
    [
        ((X,), {"y": Y}),
        ((X, Y), {}),
        ((X,), None),
        ((), {"x": X}),
        ((), {}),
        ((X, 1), {"flag": True}),
        ((1,), {"flag": True}),
        ((1, 2), {"x": X}),
    ],
)
def test_scatter_kwargs_is_the_originals(inputs: Any, kwargs: Any) -> None:
    ours = scatter_kwargs(inputs, kwargs, [0, 1])
    theirs = original.scatter_kwargs(inputs, kwargs, [0, 1])
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_as_many_keywords_as_pieces(count: int) -> None:
    inputs, kwargs = scatter_kwargs((X[:count], 1), {}, [0, 1, 2, 3])
    assert len(inputs) == len(kwargs) == len(X[:count].chunk(4))


def test_different_batch_sizes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"args\[0\] has 5 .* kwargs\['mask'\]\['m'\] has 3"):
        scatter_kwargs((X,), {"mask": {"m": torch.ones(3)}}, [0, 1])
    with pytest.raises(ValueError, match=r"inputs.left has 5 .* inputs.right has 2"):
        scatter(Pair(X, X.t()), [0, 1])


def test_a_scalar_has_nothing_to_cut() -> None:
    with pytest.raises(ValueError, match=r"args\[1\] has shape \(\) .*Replicate"):
        scatter_kwargs((X, torch.tensor(2.0)), {}, [0, 1])


def test_marks_say_what_else_to_do() -> None:
    table = torch.randn(3, requires_grad=True)
    parts = scatter((X, Replicate({"t": table}), Shard(X.t(), 1)), [0, 1])
    assert [part[0].shape[0] for part in parts] == [3, 2]
    assert [tuple(part[2].shape) for part in parts] == [(2, 3), (2, 2)]
    (parts[0][1]["t"].sum() + 2 * parts[1][1]["t"].sum()).backward()
    assert table.grad.tolist() == [3, 3, 3]


def test_a_dataclass_is_cut_and_joined() -> None:
    parts = scatter(Batch(X), [0, 1])
    assert [type(part) for part in parts] == [Batch, Batch]
    joined = gather(parts, "cpu")
    assert torch.equal(joined.x, X)
    assert joined.note == "n"


def test_an_object_without_tensors_keeps_its_identity() -> None:
    settings = Batch(3)
    assert all(part[1] is settings for part in scatter((X, settings), [0, 1]))


def test_an_empty_batch_goes_to_every_place() -> None:
    assert [tuple(piece.shape) for piece in scatter(torch.empty(0, 3), [0, 1])] == [(0, 3), (0, 3)]


def test_gradients_come_back_to_the_batch() -> None:
    x = X.clone().requires_grad_()
    parts = scatter({"x": x}, [0, 1, 2])
    gather([part["x"] ** 2 for part in parts], "cpu").sum().backward()
    assert torch.equal(x.grad, 2 * X)


@pytest.mark.usefixtures("original_on_cpu")
@pytest.mark.parametrize(
    "outputs",
    [
        [X, Y.view(5, 1).expand(5, 2).float()],
        [(X, None), (X, None)],
        [{"a": X, "b": [X]}, {"a": X, "b": [X]}],
        [Pair(X, None), Pair(X, None)],
        [OrderedDict(a=X), OrderedDict(a=X)],
        [None, None],
        [[], []],
        [(), ()],
        [{}, {}],
    ],
)
def test_gather_is_the_originals(outputs: Any) -> None:
    assert plain(gather(outputs, "cpu")) == plain(original.gather(outputs, "cpu"))


def test_keys_may_come_in_another_order() -> None:
    joined = gather([{"a": X, "b": Y}, {"b": Y, "a": X}], "cpu")
    assert joined["a"].shape == (10, 2)
    assert joined["b"].shape == (10,)


def test_what_is_the_same_in_all_stays() -> None:
    assert gather([(X, 3, "name", THING)] * 2, "cpu")[1:] == (3, "name", THING)


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        ([{"a": X}, {}], ValueError, "All dicts must have the same number of keys"),
        ([{"a": X}, {"b": X}], ValueError, r"output has the keys \['a'\] in slot 0"),
        ([(X,), (X, X)], ValueError, "tuple of 1 in slot 0 and a tuple of 2 in slot 1"),
        ([{"n": 1}, {"n": 2}], TypeError, r"output\['n'\] is 1 in slot 0 and 2 in another"),
        ([object(), object()], TypeError, "values of type object cannot be gathered"),
    ],
)
def test_what_cannot_be_joined_is_named(outputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gather(outputs, "cpu")


def test_no_cycle_keeps_a_batch_alive() -> None:
    gc.disable()
    try:
        batch = Batch(X)
        parts = scatter({"x": (X, batch)}, [0, 1])
        gone = [
            weakref.ref(each) for each in (batch, parts[0]["x"][1], gather(parts, "cpu")["x"][1])
        ]
        del batch, parts
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()
