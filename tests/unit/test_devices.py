"""Devices, as far as they can be told apart without one; `tests/gpu` has the rest."""

from __future__ import annotations

import os

import pytest
import torch

from lockstitch import devices
from lockstitch.devices import HOST, Placement

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def test_memory_of_the_cpu_is_on_the_host_and_that_of_other_devices_is_not() -> None:
    assert devices.is_on_host(torch.ones(2))
    assert not devices.is_on_host(torch.ones(2, device="meta"))


def test_what_is_staged_out_is_a_copy_without_a_graph() -> None:
    tensor = torch.ones(2, requires_grad=True)
    copy = devices.stage_out(tensor)
    assert torch.equal(copy, tensor)
    assert not copy.requires_grad


@pytest.mark.parametrize("kind", ["nonesuch", "cpus", "nn"])
def test_there_are_no_devices_of_an_unknown_kind(kind: str) -> None:
    assert devices.count(kind) == 0


def test_the_host_is_always_here_and_other_devices_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert [devices.is_here(each) for each in (HOST, FIRST, SECOND)] == [True, True, False]


def test_a_placement_goes_there_by_the_map_and_back_by_its_inverse() -> None:
    placement = Placement("w", {FIRST: SECOND, SECOND: HOST})
    assert placement.destination(FIRST) == SECOND
    assert placement.destination(SECOND) == HOST
    assert placement.destination(HOST) == HOST  # a tensor of the CPU needs no entry
    assert placement.source(SECOND) == FIRST
    assert placement.source(HOST) == SECOND
    assert repr(placement) == "<Placement for 'w' · cuda:0 → cuda:1, cuda:1 → cpu>"


def test_a_device_that_the_map_does_not_name_is_an_error_that_says_what_to_do() -> None:
    placement = Placement("w", {FIRST: SECOND})
    told = (
        "TensorPipe RPC backend only supports CPU tensors by default.*`set_device_map` on "
        "`TensorPipeRpcBackendOptions`.*{} device mapping is not available for destination w for "
        "device {}"
    )
    with pytest.raises(RuntimeError, match=told.format("Request", SECOND)):
        placement.destination(SECOND)
    with pytest.raises(RuntimeError, match=told.format("Response", FIRST)):
        placement.source(FIRST)


def test_a_forked_child_of_a_process_that_uses_cuda_asks_for_no_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices.side_streams() == []


def test_what_is_where_it_belongs_is_not_moved() -> None:
    tensor = torch.ones(2)
    (moved,) = devices.move_all([tensor], [HOST])
    assert moved is tensor


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
    devices.pin(owner, 4096, 10)
    assert runtime.pinned == {4096}
    del owner
    assert runtime.pinned == set()


def test_a_forked_child_releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, owner = Runtime(), Owner()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    devices.pin(owner, 4096, 10)
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
    devices.pin(owner, 4096, 10)
    assert cleared == ["cuda"]
    del owner
    assert runtime.pinned == set()


class Lent:
    """A tensor on a GPU, as far as it is asked."""

    is_cuda = True
    device = FIRST

    def __init__(self, layout=torch.strided, **parts):
        self.layout = layout
        self.borrowers = []
        for name, part in parts.items():
            setattr(self, name, lambda part=part: part)

    def record_stream(self, stream):
        assert self.layout is torch.strided  # as the real one
        self.borrowers.append(stream)


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (torch.sparse_coo, ("_indices", "_values")),
        (torch.sparse_csr, ("crow_indices", "col_indices", "values")),
        (torch.sparse_bsr, ("crow_indices", "col_indices", "values")),
        (torch.sparse_csc, ("ccol_indices", "row_indices", "values")),
        (torch.sparse_bsc, ("ccol_indices", "row_indices", "values")),
    ],
    ids=str,
)
def test_all_that_a_sparse_tensor_consists_of_is_used_here(monkeypatch, layout, names):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the one of {device}")
    parts = {name: Lent() for name in names}
    devices.use_here([Lent(layout, **parts), torch.ones(2)])
    assert [part.borrowers for part in parts.values()] == [["the one of cuda:0"]] * len(names)
