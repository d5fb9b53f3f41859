"""Tensors leave a structure and come back."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch

from lockstitch.nn.slots.lifting import Hole, fill, lift

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Record:
    tensor: torch.Tensor
    name: str


def test_structures_of_any_depth_come_back_as_they_were():
    a, b, c = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    value = (a, {"b": [b, None, 3]}, Pair(c, "x"), Record(a, "y"), OrderedDict(z=b))
    skeleton, tensors = lift(value)
    assert tensors == [a, b, c]
    again = fill(skeleton, [each + 1 for each in tensors])
    assert isinstance(again[2], Pair)
    assert isinstance(again[3], Record)
    assert isinstance(again[4], OrderedDict)
    assert again[0] is again[3].tensor
    assert again[1]["b"][0] is again[4]["z"]
    assert (again[1]["b"][1:], again[2].right, again[3].name) == ([None, 3], "x", "y")
    assert again[2].left.tolist() == [1, 1, 1]


def test_what_holds_no_tensors_keeps_its_identity():
    value = [1, Pair(2, "b")]
    skeleton, tensors = lift(value)
    assert tensors == []
    assert skeleton is value
    assert fill(skeleton, []) is value


def test_a_single_tensor_is_a_hole():
    tensor = torch.zeros(1)
    assert lift(tensor) == (Hole(0), [tensor])
    assert fill(Hole(0), [tensor]) is tensor
