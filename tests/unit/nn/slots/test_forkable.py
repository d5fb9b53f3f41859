"""When a process can be forked for a slot, and what is said when it cannot."""

from __future__ import annotations

import pytest
import torch

from lockstitch.nn.slots import fork, forkable, kinds
from lockstitch.nn.slots.fork import ForkSlot


@pytest.fixture(params=[True, False], ids=["there", "only known"])
def accelerator(request, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: request.param)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))


def threads(folder, *names):
    for number, name in enumerate(names):
        (folder / str(number)).mkdir()
        (folder / str(number) / "comm").write_text(name + "\n")
    (folder / "ended").mkdir()
    return folder


def test_here_nothing_stands_against_it():
    assert forkable.obstacle() is None


@pytest.mark.parametrize("name", ["pt_autograd_0", "pt_autograd_12"])
def test_the_engines_threads_for_devices(accelerator, tmp_path, name):
    assert "backward pass beside an accelerator" in forkable.obstacle(
        threads(tmp_path, "python", name)
    )


def test_other_threads_do_not_matter(accelerator, tmp_path):
    assert forkable.obstacle(threads(tmp_path, "python", "pt_elastic")) is None


def test_cuda_in_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "CUDA is in use" in forkable.obstacle()


def test_a_fork_that_is_asked_for_says_what_to_do(monkeypatch):
    monkeypatch.setattr(fork, "obstacle", lambda: "it is so")
    with pytest.raises(RuntimeError, match=r'^it is so; use .*device_ids=\["thread"'):
        ForkSlot(1, None)


@pytest.mark.parametrize(("reason", "kind"), [(None, "fork"), ("it is so", "thread")])
def test_where_there_is_a_choice_it_is_a_thread(monkeypatch, reason, kind):
    monkeypatch.setattr(kinds, "obstacle", lambda: reason)
    for name in ("fork", "thread"):
        monkeypatch.setattr(kinds, f"{name.title()}Slot", lambda *args, name=name: (name, *args))
    assert kinds.best_of_the_cpu(1, "blueprint") == (kind, 1, "blueprint")
