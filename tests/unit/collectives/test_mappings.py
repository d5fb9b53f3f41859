"""What the kernel says of memory that a program has mapped, and what operations make of it."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from lockstitch.collectives import mappings
from lockstitch.collectives.mappings import (
    OperationOnCopies,
    Sharing,
    declare_private,
    found_in,
    is_ours,
    must_be_copied,
    sharing_of,
)
from lockstitch.collectives.requests import SUM, Kind, Request

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 1 << 16
MAPS = [
    "10000-20000 r-xp 00000000 00:1f 42 /usr/lib/a b.so",
    "20000-30000 rw-p 00000000 00:00 0 ",
    "30000-40000 rw-s 00000000 00:01 7 /memfd:pages (deleted)",
    "40000-50000 r--s 00000000 00:1f 9 /data",
    "60000-70000 rw-s 00000000 00:1f 9                  /dev/shm/plasmaRqZ1aB (deleted)",
]


@pytest.mark.parametrize(
    ("begin", "end", "memory"),
    [
        (0x20000, 0x30000, Sharing.PRIVATE),
        (0x2FFFF, 0x30001, Sharing.SHARED),
        (0x30000, 0x30001, Sharing.SHARED),
        (0x3FFF0, 0x40010, Sharing.READ_ONLY),
        (0x1FFFF, 0x20001, Sharing.READ_ONLY),
        (0x60000, 0x60001, Sharing.READ_ONLY),
        (0x90000, 0x90001, Sharing.PRIVATE),
    ],
)
def test_all_that_a_tensor_touches_counts(begin: int, end: int, memory: Sharing) -> None:
    assert found_in(MAPS, begin, end) is memory


def of_map(pages: mmap.mmap) -> torch.Tensor:
    return torch.frombuffer(pages, dtype=torch.float32, count=COUNT)


def of_file(path: Path, mode: str) -> torch.Tensor:
    path.write_bytes(bytes(4 * COUNT))
    with np.errstate(all="ignore"):
        array = np.memmap(path, np.float32, mode)  # type: ignore[call-overload]
    return torch.from_numpy(array)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_kinds_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    shared = torch.ones(COUNT).share_memory_()
    assert sharing_of(torch.ones(COUNT)) is Sharing.PRIVATE
    assert sharing_of(torch.from_numpy(np.ones(COUNT))) is Sharing.PRIVATE
    assert sharing_of(of_file(path, "c")) is Sharing.PRIVATE
    assert sharing_of(of_file(path, "r+")[5:9]) is Sharing.SHARED
    assert sharing_of(of_file(path, "r")) is Sharing.READ_ONLY
    assert sharing_of(shared) is Sharing.SHARED
    assert sharing_of(torch.from_file(str(path), shared=True, size=COUNT)) is Sharing.SHARED
    with mmap.mmap(-1, 4 * COUNT) as pages:
        tensor = of_map(pages)
        assert sharing_of(tensor) is Sharing.SHARED
        del tensor
    assert [is_ours(each) for each in (torch.ones(2), shared, torch.from_numpy(np.ones(2)))] == [
        True,
        False,
        False,
    ]


def test_declared_memory_stays_what_it_was_declared_for_all_views() -> None:
    pages = mmap.mmap(-1, 4 * COUNT)
    tensor = of_map(pages)
    declare_private(tensor)
    view = tensor[7:9].view(1, 2)
    del tensor
    assert sharing_of(view) is Sharing.PRIVATE
    assert not must_be_copied(Request(Kind.ALLREDUCE, "x", (view,), (view,), SUM), 1)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_memory_that_cannot_be_written_is_refused_as_an_output_only(tmp_path: Path) -> None:
    tensor = of_file(tmp_path / "pages", "r")
    assert must_be_copied(Request(Kind.ALLREDUCE, "x", (tensor,), None, SUM), 1)
    with pytest.raises(ValueError, match="'x': its result cannot be written where .* read-only"):
        must_be_copied(Request(Kind.ALLREDUCE, "x", (tensor,), (tensor,), SUM), 1)
    with pytest.raises(ValueError, match="nameless broadcast"):
        must_be_copied(Request(Kind.BROADCAST, "", (tensor,), (tensor,), root=0), 1)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_sender_of_a_broadcast_may_read_what_cannot_be_written(tmp_path: Path) -> None:
    tensors = (of_file(tmp_path / "pages", "r"),)
    request = Request(Kind.BROADCAST, "x", tensors, tensors, root=1, is_group=True)
    assert must_be_copied(request, 1)
    on_copies = OperationOnCopies(request, 1)
    on_copies.request.tensors[0].fill_(3.0)
    assert on_copies(None)[0] is tensors[0]
    assert not tensors[0].any()
    with pytest.raises(ValueError, match="cannot be written"):
        must_be_copied(request, 0)


def test_detour_works_on_copies_and_writes_the_result_once() -> None:
    tensor = torch.ones(2, 3).share_memory_()
    on_copies = OperationOnCopies(Request(Kind.ALLREDUCE, "x", (tensor,), (tensor,), SUM), 0)
    (mine,) = on_copies.request.tensors
    assert on_copies.request.outputs == (mine,)
    assert not mine.is_shared()
    mine += 1
    assert tensor.sum() == 6
    assert on_copies(mine) is tensor
    assert tensor.sum() == 12
    tensor.zero_()
    assert on_copies(mine) is tensor
    assert tensor.sum() == 0


def test_memory_of_torch_needs_no_detour() -> None:
    tensor = torch.ones(2, 3)
    assert not must_be_copied(Request(Kind.ALLREDUCE, "x", (tensor,), (tensor,), SUM), 1)
    assert not must_be_copied(Request(Kind.ALLREDUCE, "x", (tensor.to_sparse(),), None, SUM), 1)
    assert os.path.exists("/proc/self/maps")


def test_small_memory_of_an_array_is_looked_up_when_it_comes_again_and_again() -> None:
    tensor = torch.ones(10)
    tensor.numpy()
    sights = [mappings.is_shared(tensor) for _ in range(12)]
    assert sights[0]
    assert sights == sorted(sights, reverse=True)
    assert not sights[-1]
    assert mappings.is_private(tensor)
    assert not mappings.is_ours(tensor)  # its address is known elsewhere
    shared = torch.ones(10).share_memory_()
    assert all(mappings.is_shared(shared) for _ in range(12))
    assert not mappings.is_private(shared)


@pytest.mark.parametrize("count", [10, 1 << 17])
def test_what_is_shared_after_it_was_looked_up(count: int) -> None:
    tensor = torch.from_numpy(np.ones(count))
    assert not [mappings.is_shared(tensor) for _ in range(12)][-1]
    tensor.share_memory_()
    assert mappings.is_shared(tensor)
    assert sharing_of(tensor) is Sharing.SHARED
    assert not mappings.is_private(tensor)
