"""What a container holds, and one like it."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from lockstitch.nn.parallel.containers import unpack_container

Pair = namedtuple("Pair", "left right")


@dataclass
class Batch:
    x: Any
    y: Any = field(default=None)


@dataclass(frozen=True, init=False)
class Frozen:
    x: Any

    def __init__(self, one: int, other: int) -> None:
        object.__setattr__(self, "x", one + other)


class Tagged(list):  # type: ignore[type-arg]
    tag = ""


class Settings(dict):  # type: ignore[type-arg]
    tag = ""


def tagged(things: Any) -> Any:
    things.tag = "kept"
    return things


@pytest.mark.parametrize(
    ("thing", "keys"),
    [
        ((1, 2), ["[0]", "[1]"]),
        ([1, 2], ["[0]", "[1]"]),
        ({"a": 1, 3: 2}, ["['a']", "[3]"]),
        (Pair(1, 2), [".left", ".right"]),
        (Batch(1, 2), [".x", ".y"]),
        (Frozen(1, 0), [".x"]),
        (tagged(Tagged([1])), ["[0]"]),
        (tagged(Settings(a=1)), ["['a']"]),
        (OrderedDict(b=1, a=2), ["['b']", "['a']"]),
        (defaultdict(list, a=1), ["['a']"]),
        (UserDict(a=1), ["['a']"]),
        (deque([1], maxlen=3), ["[0]"]),
    ],
)
def test_a_container_is_rebuilt_as_its_type(thing: Any, keys: list[str]) -> None:
    opened = unpack_container(thing)
    assert opened is not None
    assert list(opened.keys) == keys
    assert opened.rebuild(opened.children) == thing
    other = opened.rebuild([child + 10 for child in opened.children])
    assert type(other) is type(thing)
    assert other != thing
    assert getattr(other, "tag", None) == getattr(thing, "tag", None)
    assert getattr(other, "default_factory", None) is getattr(thing, "default_factory", None)


@pytest.mark.parametrize(
    "thing", [torch.Size([1]), (), [], {}, 3, "text", None, {1, 2}, torch.ones(2), Batch]
)
def test_what_is_no_container(thing: Any) -> None:
    assert unpack_container(thing) is None


def test_a_type_registered_with_pytree_is_a_container() -> None:
    class Graph:
        def __init__(self, nodes: Any, name: str) -> None:
            self.nodes, self.name = nodes, name

    pytree.register_pytree_node(
        Graph, lambda g: ([g.nodes], g.name), lambda children, name: Graph(*children, name)
    )
    try:
        opened = unpack_container(Graph([1], "g"))
        assert opened is not None
        assert opened.children == [[1]]
        other = opened.rebuild([[2]])
        assert (type(other), other.nodes, other.name) == (Graph, [2], "g")
    finally:
        pytree._deregister_pytree_node(Graph)
