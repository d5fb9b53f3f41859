"""DeviceRoutes, as far as they can be told apart without one; `tests/gpu` has the rest."""

from __future__ import annotations

import pytest
import torch

from lockstitch.devices import kinds
from lockstitch.devices.kinds import HOST

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def test_memory_of_the_cpu_is_on_the_host_and_that_of_other_devices_is_not() -> None:
    assert kinds.is_on_host(torch.ones(2))
    assert not kinds.is_on_host(torch.ones(2, device="meta"))


@pytest.mark.parametrize("kind", ["nonesuch", "cpus", "nn"])
def test_there_are_no_devices_of_an_unknown_kind(kind: str) -> None:
    assert kinds.count(kind) == 0


def test_the_host_is_always_here_and_other_devices_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [kinds.is_here(each) for each in (HOST, FIRST, SECOND)] == [True, True, False]
