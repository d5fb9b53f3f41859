"""Accelerators by torch's generic interface, where there is none and where one is made up."""

from __future__ import annotations

import pytest
import torch

from lockstitch.devices import accelerators
from lockstitch.devices.kinds import HOST


@pytest.fixture
def three(monkeypatch):
    """Three of them, the last of which is current."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 2)


@pytest.fixture
def none(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)


def test_without_one_every_number_is_the_host(none):
    assert list(accelerators.indices()) == []
    assert [accelerators.numbered(index) for index in (None, 0, 3)] == [HOST] * 3
    assert accelerators.kinds() == ["cpu"]
    assert accelerators.current_streams([HOST]) == {}


def test_a_name_without_a_number_is_the_current_one(three):
    assert list(accelerators.indices()) == [0, 1, 2]
    assert accelerators.numbered() == accelerators.named("cuda") == torch.device("cuda:2")
    assert accelerators.numbered(1) == accelerators.named("cuda:1") == torch.device("cuda:1")
    assert accelerators.named("cpu") == HOST
    assert accelerators.kinds() == ["cpu", "cuda"]


def test_nothing_is_made_current_for_the_host(three):
    with accelerators.made_current(HOST, None):
        pass
