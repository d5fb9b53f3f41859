"""Tensors come to the replica's device and go home, as far as the CPU can show it; `tests/gpu` has
the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.modes import Modes
from lockstitch.nn.slots.base import BackwardRequest, Changes, Request
from lockstitch.nn.slots.device_execution import DeviceExecutor, at_home
from lockstitch.nn.slots.lifting import lift

META = torch.device("meta")
HOST = torch.device("cpu")


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("offset", torch.zeros(2))
        self.register_buffer("spare", torch.zeros(2))

    def forward(self, x):
        return x * self.weight + self.offset


def request(x: torch.Tensor, **others) -> Request:
    skeleton, tensors = lift(((x,), {}))
    return Request(
        1, skeleton, tensors, [False], Modes.of_this_thread(), torch.float32, 0, **others
    )


@pytest.fixture
def moved(monkeypatch):
    """What has been brought to a device so far: the first number of each tensor, to which device,
    and whether the CPU went on meanwhile."""
    seen = []
    move = torch.Tensor.to

    def watched(tensor, device, *, non_blocking):
        seen.append((tensor.view(-1)[0].item(), device, non_blocking))
        return move(tensor, device)

    monkeypatch.setattr(torch.Tensor, "to", watched)
    return seen


@pytest.mark.parametrize("waits", [False, True])
def test_arguments_changes_and_gradients_come_to_the_device(waits, moved):
    module = Scaled()
    executor = DeviceExecutor(module, [module.weight], HOST, waits=waits)
    changes = Changes(others=[(0, torch.full((2,), 4.0)), (1, None)])
    outcome = executor.forward(request(torch.full((3, 2), 5.0), changes=changes))
    assert outcome.tensors[0].tolist() == [[9.0, 9.0]] * 3
    assert module.spare is None
    found = executor.backward(BackwardRequest(1, [torch.full((3, 2), 6.0)], keeps_graph=False))
    assert [each.tolist() for each in found.leaves] == [[90.0, 90.0]]
    assert moved == [(number, HOST, not waits) for number in (4.0, 5.0, 6.0)]


def test_gradients_go_to_the_devices_of_their_leaves():
    leaves = [torch.ones(2, device=META), torch.ones(3), torch.ones(1)]
    found = at_home([torch.ones(2), torch.ones(3), None], leaves)
    assert [None if each is None else each.device for each in found] == [META, HOST, None]
    assert at_home([], leaves) == []  # they have stayed in the slot
