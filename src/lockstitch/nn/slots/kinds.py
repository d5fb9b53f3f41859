"""Which kind of slot belongs to an entry of `device_ids`: a number or a device, or one of these.

`"fork"` and `"thread"` are slots of the CPU, a process or a thread; `"cpu"` is a process where
there can be one, else a thread, and so is a number where there is no accelerator. A worker's name
of `lockstitch.rpc`, `"worker1"` or `"worker1/cuda:0"`, is a slot there. A function makes the slot
itself (`base.SlotFactory`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from lockstitch.devices.kinds import HOST, is_host
from lockstitch.nn.parallel.places import device_of
from lockstitch.nn.slots.fork import ForkSlot
from lockstitch.nn.slots.forkable import obstacle
from lockstitch.nn.slots.remote import RemoteSlot, is_on_worker
from lockstitch.nn.slots.thread import ThreadSlot

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from lockstitch.nn.parallel.places import Place
    from lockstitch.nn.slots.base import Blueprint, Slot, SlotFactory

SlotPlace: TypeAlias = "Place | SlotFactory"


def best_of_the_cpu(number: int, blueprint: Blueprint) -> Slot:
    """A slot that is a process, where this one can be forked, else a thread."""
    kind = ThreadSlot if obstacle() else ForkSlot
    return kind(number, blueprint)


_KINDS: Final[dict[str, SlotFactory]] = {
    "thread": ThreadSlot,
    "fork": ForkSlot,
    "cpu": best_of_the_cpu,
}


def factory_for(place: SlotPlace) -> SlotFactory:
    """What makes the slot for an entry. Raises `ValueError` for what is none."""
    if callable(place):
        return place
    if isinstance(place, str) and place in _KINDS:
        return _KINDS[place]
    if isinstance(place, str) and is_on_worker(place):
        return partial(RemoteSlot, place)
    device = device_of(place)
    if is_host(device):
        return _KINDS["cpu"]
    raise ValueError(f"there are no slots on {device}")


def places_for(places: Iterable[SlotPlace]) -> list[torch.device]:
    """The device, for each entry, of the tensors that its slot is given."""
    return [
        getattr(place, "device", HOST)
        if callable(place)
        else HOST
        if place in _KINDS or is_on_worker(place)
        else device_of(place)
        for place in places
    ]


def are_slots(places: Iterable[SlotPlace]) -> bool:
    """Whether `factory_for` knows all of them; accelerators by number or name are places of the
    original's algorithm instead."""
    return all(
        callable(place) or place in _KINDS or is_on_worker(place) or is_host(device_of(place))
        for place in places
    )
