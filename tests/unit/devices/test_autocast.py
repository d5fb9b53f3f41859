"""Autocast of a thread is read as a value, and entered elsewhere."""

from __future__ import annotations

import torch

from lockstitch.devices.autocast import Autocast, current_autocast, within_autocast

OFF = Autocast((), True)


def product() -> torch.dtype:
    return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype


def test_what_one_thread_is_in_another_enters() -> None:
    assert current_autocast() == OFF
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        autocast = current_autocast()
    assert autocast == Autocast((("cpu", torch.float16),), False)
    with within_autocast(autocast):
        assert product() == torch.float16
        assert current_autocast() == autocast
        with within_autocast(OFF):
            assert product() == torch.float32
            assert current_autocast() == OFF
        assert product() == torch.float16
    assert current_autocast() == OFF


def test_devices_that_are_not_here_are_left_out() -> None:
    with within_autocast(Autocast((("no such device", torch.float16),), True)):
        assert current_autocast() == OFF
