"""Entries of `device_ids`, and what they stand for."""

from __future__ import annotations

import pytest
import torch

from lockstitch.nn.slots.fork import ForkSlot
from lockstitch.nn.slots.kinds import are_slots, best_of_the_cpu, factory_for, places_for
from lockstitch.nn.slots.remote import RemoteSlot
from lockstitch.nn.slots.thread import ThreadSlot


def make_one(number, blueprint):
    raise AssertionError("not asked for")


@pytest.mark.parametrize(
    ("place", "kind"), [("thread", ThreadSlot), ("fork", ForkSlot), (make_one, make_one)]
)
def test_a_name_or_a_function_says_who_makes_the_slot(place, kind):
    assert factory_for(place) is kind


@pytest.mark.parametrize("place", ["cpu", torch.device("cpu"), -1])
def test_the_cpu_is_what_this_system_is_best_at(place):
    assert factory_for(place) is best_of_the_cpu


@pytest.mark.parametrize("place", ["worker1", "worker1/cuda:0"])
def test_other_names_are_workers(place):
    factory = factory_for(place)
    assert (factory.func, factory.args) == (RemoteSlot, (place,))


@pytest.mark.parametrize("place", ["meta", "cuda:0", torch.device("meta")])
def test_devices_are_no_slots(place):
    with pytest.raises(ValueError, match="there are no slots on"):
        factory_for(place)
    assert not are_slots(["fork", place])


def test_slots_are_given_tensors_of_the_cpu_unless_they_have_a_device():
    class Elsewhere:
        device = torch.device("meta")

        def __call__(self, number, blueprint):
            raise AssertionError("not asked for")

    places = places_for(["fork", "thread", "worker1", make_one, Elsewhere(), "meta"])
    assert [place.type for place in places] == ["cpu"] * 4 + ["meta"] * 2
    assert are_slots(["fork", "worker1", make_one, "cpu"])
