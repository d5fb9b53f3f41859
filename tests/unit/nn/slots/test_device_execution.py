"""Tensors come to the replica's device and go home; here the other device is one without content
(`meta`), on a GPU `tests/gpu` has the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lockstitch.nn.parallel.modes import Modes
from lockstitch.nn.slots.base import BackwardRequest, Changes, Request
from lockstitch.nn.slots.device_execution import DeviceExecutor, at_home
from lockstitch.nn.slots.lifting import lift

META = torch.device("meta")
HOST = torch.device("cpu")


def executor_on(device: torch.device, *, waits: bool = True) -> DeviceExecutor:
    module = nn.BatchNorm1d(2).to(device)
    return DeviceExecutor(module, list(module.parameters()), device, waits=waits)


def request(x: torch.Tensor, **others) -> Request:
    skeleton, tensors = lift(((x,), {}))
    return Request(
        1, skeleton, tensors, [False], Modes.of_this_thread(), torch.float32, 0, **others
    )


@pytest.mark.parametrize("device", [HOST, META], ids=str)
def test_arguments_changes_and_gradients_come_to_the_device(device):
    executor = executor_on(device)
    changes = Changes(others=[(1, torch.full((2,), 4.0)), (2, None)])
    outcome = executor.forward(request(torch.ones(4, 2), changes=changes))
    assert [each.device for each in outcome.tensors] == [device]
    assert executor._module.num_batches_tracked is None
    assert executor._module.running_var.device == device
    found = executor.backward(BackwardRequest(1, [torch.ones(4, 2)], keeps_graph=False))
    assert [each.device for each in found.leaves] == [device] * 2


@pytest.mark.parametrize("waits", [False, True])
def test_whether_the_cpu_waits_until_the_device_has_read_what_it_is_given(waits, monkeypatch):
    seen = []
    move = torch.Tensor.to

    def watched(tensor, device, *, non_blocking):
        seen.append(non_blocking)
        return move(tensor, device)

    executor = executor_on(META, waits=waits)
    monkeypatch.setattr(torch.Tensor, "to", watched)
    executor.bring([torch.ones(1), torch.ones(1)])
    assert seen == [not waits] * 2


def test_gradients_go_to_the_devices_of_their_leaves():
    leaves = [torch.ones(2, device=META), torch.ones(3), torch.ones(1)]
    found = at_home([torch.ones(2), torch.ones(3), None], leaves)
    assert [None if each is None else each.device for each in found] == [META, HOST, None]
    assert at_home([], leaves) == []  # they have stayed in the slot
