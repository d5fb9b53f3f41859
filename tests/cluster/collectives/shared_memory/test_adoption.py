"""Tensors of the program that come to live where the other ranks reach them."""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace

import pytest
import torch

from lockstitch.collectives import SUM, Session
from lockstitch.collectives.shared_memory import adoption
from lockstitch.memory.mapping import Mapping
from tests.cluster.collectives.ranks import Ranks

COUNT = 300_007


def summed(session: Session, tensor: torch.Tensor) -> None:
    session.wait(session.allreduce(tensor, SUM, name="t", output=tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_adopted_tensor_is_reduced_with_all_its_views(size: int, dtype: torch.dtype) -> None:
    def work(session: Session) -> None:
        tensor = torch.arange(COUNT).remainder(5).to(dtype)
        view = tensor[3:9].view(2, 3)
        before = tensor.clone()
        assert not session.is_resident(tensor)
        assert session.adopt(tensor)
        assert session.is_resident(tensor)
        assert not session.adopt(tensor)
        assert torch.equal(tensor, before)
        for turn in range(1, 4):
            summed(session, tensor)
            assert torch.equal(tensor, before * size**turn)
            assert torch.equal(view.flatten(), tensor[3:9])
        view.fill_(1)  # what the program writes, the others read
        part = tensor[: COUNT - 1]
        summed(session, part)
        assert part[3:9].tolist() == [size] * 6

    with Ranks(size, "shared_memory") as ranks:
        ranks.run(work)


def test_only_some_ranks_may_adopt() -> None:
    def work(session: Session) -> None:
        tensor = torch.full((COUNT,), float(session.rank))
        if session.rank == 1:
            assert session.adopt(tensor)
        summed(session, tensor)
        assert tensor.unique().tolist() == [3.0]

    with Ranks(3, "shared_memory") as ranks:
        ranks.run(work)


def test_memory_outlives_its_session_and_is_private_to_the_next() -> None:
    tensors = [torch.ones(COUNT) for _ in range(2)]
    for turn in range(2):
        with Ranks(2, "shared_memory") as ranks:

            def work(session: Session) -> None:
                assert session.adopt(tensors[session.rank]) == (turn == 0)  # noqa: B023
                summed(session, tensors[session.rank])

            ranks.run(work)
        assert all(each.unique().tolist() == [2.0 ** (turn + 1)] for each in tensors)


def test_room_is_free_again_with_the_last_view() -> None:
    with Ranks(2, "shared_memory") as ranks:
        session = ranks[0]
        arena = session._backend._arena  # type: ignore[attr-defined]
        tensor = torch.ones(COUNT)
        view = tensor[5:]
        assert session.adopt(tensor)
        del tensor
        gc.collect()
        assert len(arena) == 1
        assert view[0] == 1
        del view
        gc.collect()
        arena.collect()
        assert len(arena) == 0


def test_what_is_not_a_whole_storage_of_torch_stays_where_it_is() -> None:
    with Ranks(2, "shared_memory") as ranks:
        session = ranks[0]
        for tensor in (
            torch.ones(COUNT)[1:],
            torch.ones(600, 600).t(),
            torch.ones(COUNT).share_memory_(),
            torch.frombuffer(bytearray(1 << 20), dtype=torch.float32),
        ):
            address = tensor.data_ptr()
            assert not session.adopt(tensor)
            assert (tensor.data_ptr(), session.is_resident(tensor)) == (address, False)


@pytest.mark.parametrize("what", ["little room", "no room to ask for", "another strategy"])
def test_nothing_moves_where_there_is_no_room_for_the_pages(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def no_room(_path: str) -> object:
        if what == "no room to ask for":
            raise FileNotFoundError
        return SimpleNamespace(f_bavail=1000, f_frsize=4096)

    with Ranks(2, "shared_memory") as ranks:
        if what == "another strategy":
            monkeypatch.setattr(adoption.multiprocessing, "get_sharing_strategy", lambda: "other")
        else:
            monkeypatch.setattr(os, "statvfs", no_room)
        tensor = torch.ones(COUNT)
        assert not ranks[0].adopt(tensor)
        assert not tensor.is_shared()


def test_content_is_kept_where_the_system_cannot_map_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError

    def work(session: Session) -> None:
        tensor = torch.arange(float(COUNT))
        assert not session.adopt(tensor)
        assert not session.is_resident(tensor)
        assert torch.equal(tensor, torch.arange(float(COUNT)))
        summed(session, tensor)
        assert torch.equal(tensor, torch.arange(float(COUNT)) * 2)

    monkeypatch.setattr(Mapping, "show_at", fail)
    with Ranks(2, "shared_memory") as ranks:
        ranks.run(work)


def test_other_backends_adopt_nothing() -> None:
    with Ranks(2, "memory") as ranks:
        assert not ranks[0].adopt(torch.ones(COUNT))
