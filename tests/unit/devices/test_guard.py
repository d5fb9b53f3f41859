from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from lockstitch.devices.guard import keep_guard


def torch_of(version="2.11.0", cuda="13.0", devices=0):
    """Torch, as far as it matters; `.setters` are the threads that have set the guard."""
    setters = []
    return SimpleNamespace(
        __version__=version,
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(device_count=lambda: devices),
        set_guard=lambda: setters.append(threading.current_thread()),
        setters=setters,
    )


def test_an_old_torchs_guard_belongs_to_the_main_thread():
    torch = torch_of()
    keep_guard(torch, None, torch.set_guard)
    assert torch.setters == [threading.main_thread()]


def test_or_to_one_that_outlives_the_thread_that_compiles_first():
    torch, end = torch_of(), threading.Event()
    first = threading.Thread(target=keep_guard, args=(torch, end, torch.set_guard))
    first.start()
    first.join()
    (owner,) = torch.setters
    assert owner is not first
    assert owner.is_alive()
    end.set()
    owner.join()


@pytest.mark.parametrize("changes", [{"version": "2.12.0"}, {"cuda": None}, {"devices": 1}])
def test_other_torchs_are_left_alone(changes):
    torch = torch_of(**changes)
    keep_guard(torch, None, torch.set_guard)
    assert torch.setters == []
