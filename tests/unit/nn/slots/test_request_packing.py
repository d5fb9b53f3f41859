"""Requests come out of a message as they went in, and their modes are pickled once."""

from __future__ import annotations

import dataclasses
import pickle

import torch

from lockstitch.modes import Modes
from lockstitch.nn.slots.base import Changes, Request, VjpOf
from lockstitch.nn.slots.lifting import lift
from lockstitch.nn.slots.request_packing import Packer, Unpacker


def request(number=1, changes=None, **modes):
    skeleton, tensors = lift(((torch.arange(3.0), "a"), {"scale": torch.ones(2)}))
    return Request(
        number,
        skeleton,
        tensors,
        [True, False],
        dataclasses.replace(Modes.of_this_thread(), **modes),
        torch.float32,
        seed=7,
        changes=changes or Changes(),
    )


def sent(packer, unpacker, original):
    content, tensors = packer.pack(original)
    return unpacker.unpack(original.number, pickle.loads(pickle.dumps(content)), tensors)


def test_a_request_comes_out_as_it_went_in():
    original = request(number=5, is_inference=True)
    got = sent(Packer(), Unpacker(), original)
    for name in ("number", "skeleton", "wants_gradient", "modes", "default_dtype", "seed"):
        assert getattr(got, name) == getattr(original, name)
    assert [each.tolist() for each in got.tensors] == [[0, 1, 2], [1, 1]]
    assert not got.changes


def test_changes_travel_beside_the_tensors_and_become_the_slots_own():
    buffer = torch.zeros(2)
    changes = Changes([(0, "training", False)], [(3, buffer), (4, None)])
    got = sent(Packer(), Unpacker(), request(changes=changes))
    assert len(got.tensors) == 2
    assert got.changes.attributes == [(0, "training", False)]
    (number, copy), last = got.changes.others
    assert (number, last) == (3, (4, None))
    buffer.fill_(1)  # the message's memory is used again
    assert copy.tolist() == [0, 0]


def test_modes_are_pickled_when_they_change_and_read_once():
    packer, unpacker = Packer(), Unpacker()
    first = sent(packer, unpacker, request(1))
    second = sent(packer, unpacker, request(2))
    other = sent(packer, unpacker, request(3, is_grad_enabled=False))
    again = sent(packer, unpacker, request(4))
    assert second.modes is first.modes is again.modes
    assert not other.modes.is_grad_enabled


def test_it_says_whose_gradients_are_wanted():
    original = dataclasses.replace(request(), vjp_of=VjpOf(3, keeps_graph=True))
    got = sent(Packer(), Unpacker(), original)
    assert got.vjp_of == VjpOf(3, keeps_graph=True)
    assert sent(Packer(), Unpacker(), request()).vjp_of is None
