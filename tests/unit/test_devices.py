"""Devices, as far as they can be told apart without one; `tests/gpu` has the rest."""

from __future__ import annotations

import pytest
import torch

from lockstitch import devices
from lockstitch.wire import tensors
from lockstitch.wire.frames import FrameDecoder, encode
from lockstitch.wire.messages import Payload, Reply
from lockstitch.wire.pickling import ONE_TENSOR


def test_memory_of_the_cpu_is_on_the_host_and_that_of_other_devices_is_not() -> None:
    assert devices.is_on_host(torch.ones(2))
    assert not devices.is_on_host(torch.ones(2, device="meta"))


def test_what_is_staged_out_is_a_copy_and_knows_its_device() -> None:
    tensor = torch.ones(2, requires_grad=True)
    copy, device = devices.stage_out(tensor)
    assert device == "cpu"
    assert torch.equal(copy, tensor)
    assert not copy.requires_grad


@pytest.mark.parametrize("device", ["cuda:9999", "nonesuch:0"])
def test_where_a_device_is_missing_the_tensor_stays_on_the_host(device: str) -> None:
    tensor = torch.ones(2)
    assert devices.stage_in(tensor, device) is tensor


@pytest.mark.parametrize("shape", [(3,), (100, 100), (4, 5)])
def test_a_staged_tensor_crosses_with_its_values_and_flags(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    tensor = torch.nn.Parameter(torch.randn(shape))
    # Only this one pretends to live elsewhere; its staged copy does not.
    monkeypatch.setattr(tensors, "is_on_host", lambda each: each is not tensor)
    decoder = FrameDecoder()
    for buffer in encode(Reply(1, None, Payload(ONE_TENSOR, b"", (tensor,)))):
        decoder.feed(buffer)
    (arrived,) = decoder.messages.popleft().body.items  # type: ignore[attr-defined]
    assert type(arrived) is torch.nn.Parameter
    assert torch.equal(arrived, tensor)
