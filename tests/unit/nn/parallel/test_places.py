"""Numbers are slots on the CPU where there is no accelerator."""

from __future__ import annotations

import pytest
import torch

from lockstitch.nn.parallel.places import are_different_gpus, device_of, devices_of


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize("place", [0, 1, 17, -1, None, "cpu", "fork", torch.device("cpu")])
def test_without_an_accelerator_all_numbers_are_slots_on_the_cpu(place: object) -> None:
    assert device_of(place) == torch.device("cpu")


def test_with_accelerators_a_number_is_the_index_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    assert devices_of([0, 2, -1, "cuda:1"]) == [
        torch.device("cuda:0"),
        torch.device("cuda:2"),
        torch.device("cpu"),
        torch.device("cuda:1"),
    ]
    assert device_of(None) == device_of("cuda") == torch.device("cuda:3")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(RuntimeError, match="worker1"):
        device_of("worker1")


def test_what_torchs_own_functions_can_do() -> None:
    gpus = [torch.device("cuda:0"), torch.device("cuda:1")]
    assert are_different_gpus(gpus)
    assert not are_different_gpus(gpus[:1])
    assert not are_different_gpus([gpus[0], gpus[0]])
    assert not are_different_gpus([gpus[0], torch.device("cpu")])
