"""Pinned memory, with a CUDA that only takes notes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from lockstitch.devices import pinned

if TYPE_CHECKING:
    import pytest


class Owner:
    """Something that has memory."""


class Runtime:
    """CUDA's, as far as pinning goes."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.pinned: set[int] = set()

    def cudaHostRegister(self, address: int, _size: int, _flags: int) -> int:  # noqa: N802
        if not self.error:
            self.pinned.add(address)
        return self.error

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802
        self.pinned.remove(address)


def test_pinned_memory_is_released_when_its_owner_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, owner = Runtime(), Owner()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    pinned.pin(owner, 4096, 10)
    assert runtime.pinned == {4096}
    del owner
    assert runtime.pinned == set()


def test_a_forked_child_releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, owner = Runtime(), Owner()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    pinned.pin(owner, 4096, 10)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del owner
    assert runtime.pinned == {4096}


def test_memory_that_cannot_be_pinned_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, owner = Runtime(error=1), Owner()
    cleared: list[str] = []

    def zeros(_size: int, device: str) -> None:
        cleared.append(device)
        raise RuntimeError("CUDA error: what cudaHostRegister has left")

    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "zeros", zeros)
    pinned.pin(owner, 4096, 10)
    assert cleared == ["cuda"]
    del owner
    assert runtime.pinned == set()
