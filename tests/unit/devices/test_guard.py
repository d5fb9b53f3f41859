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
        _C=SimpleNamespace(
            _ensureCUDADeviceGuardSet=lambda: setters.append(threading.current_thread())
        ),
        setters=setters,
    )


def compile_with(torch):
    """What torch does each time when it begins."""
    torch._C._ensureCUDADeviceGuardSet()


def test_an_old_torchs_guard_belongs_to_the_main_thread():
    torch = torch_of()
    keep_guard(torch)
    assert torch.setters == []  # nothing is compiled yet
    compile_with(torch)
    assert torch.setters == [threading.main_thread()]


def test_or_to_one_that_outlives_the_thread_that_compiles_first():
    torch, end = torch_of(), threading.Event()
    keep_guard(torch, end)
    threads = [threading.Thread(target=compile_with, args=(torch,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compile_with(torch)
    (owner,) = torch.setters
    assert owner not in (*threads, threading.main_thread())
    assert owner.is_alive()
    end.set()
    owner.join()


@pytest.mark.parametrize("changes", [{"version": "2.12.0"}, {"cuda": None}, {"devices": 1}])
def test_other_torchs_are_left_alone(changes):
    torch = torch_of(**changes)
    keep_guard(torch)
    thread = threading.Thread(target=compile_with, args=(torch,))
    thread.start()
    thread.join()
    assert torch.setters == [thread]
