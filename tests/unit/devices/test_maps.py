"""Where a device map sends tensors, and back."""

from __future__ import annotations

import pytest
import torch

from lockstitch.devices.kinds import HOST
from lockstitch.devices.maps import DeviceMap

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def test_a_map_goes_there_by_the_map_and_back_by_its_inverse() -> None:
    device_map = DeviceMap("w", {FIRST: SECOND, SECOND: HOST})
    assert device_map.destination(FIRST) == SECOND
    assert device_map.destination(SECOND) == HOST
    assert device_map.destination(HOST) == HOST  # a tensor of the CPU needs no entry
    assert device_map.source(SECOND) == FIRST
    assert device_map.source(HOST) == SECOND
    assert repr(device_map) == "<DeviceMap for 'w' · cuda:0 → cuda:1, cuda:1 → cpu>"


def test_a_device_that_the_map_does_not_name_is_an_error_that_says_what_to_do() -> None:
    device_map = DeviceMap("w", {FIRST: SECOND})
    told = (
        "TensorPipe RPC backend only supports CPU tensors by default.*`set_device_map` on "
        "`TensorPipeRpcBackendOptions`.*{} device mapping is not available for destination w for "
        "device {}"
    )
    with pytest.raises(RuntimeError, match=told.format("Request", SECOND)):
        device_map.destination(SECOND)
    with pytest.raises(RuntimeError, match=told.format("Response", FIRST)):
        device_map.source(FIRST)
