"""Groups of real processes: what is large is copied once, and everybody has it for himself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch import autograd, rpc
from lockstitch.errors import GroupError
from lockstitch.testing.processes import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 1 << 20  # float32: 4 MB, far above what is copied for each


def write_into(x: torch.Tensor) -> float:
    assert float(x.sum()) == COUNT
    x += rpc.get_worker_info().id
    return float(x.sum())


async def keep(x: torch.Tensor, kept: rpc.RRef) -> bool:
    await asyncio.sleep(0)
    kept.local_value().append(x)
    return True


def sums(kept: list[torch.Tensor]) -> list[float]:
    return [float(x.sum()) for x in kept]


def scale(x: torch.Tensor) -> torch.Tensor:
    return x[:2] * (rpc.get_worker_info().id + 1)


def squares(n: int):
    for number in range(n):
        yield torch.full((COUNT,), float(number))


def large_arguments() -> None:
    group, x = rpc.group(), torch.ones(COUNT)
    for _ in range(3):
        assert group.call(write_into, (x,)) == [COUNT * (1.0 + rank) for rank in range(4)]
    assert float(x.sum()) == COUNT
    kept = group.remote(list)
    for factor in range(5):  # what is kept is not written over by what comes later
        assert all(group.call(keep, (torch.full((COUNT,), float(factor)), kept)))
    assert kept.call(sums) == [[factor * float(COUNT) for factor in range(5)]] * 4


def large_gradients() -> None:
    x = torch.ones(COUNT, requires_grad=True)
    with autograd.context() as context_id:
        copies = rpc.group().broadcast(x)
        total = copies.reduce(scale) + rpc.group().reduce(scale, (x,))
        autograd.backward(context_id, [total.sum()])
        gradient = autograd.get_gradients(context_id)[x]
    assert gradient[:3].tolist() == [20.0, 20.0, 0.0]


def large_streams() -> None:
    for number, item in enumerate(rpc.stream("worker1", squares, (6,), window=2)):
        assert float(item.sum()) == number * COUNT
        item += 1


def a_member_is_dead() -> None:
    x = torch.ones(COUNT)
    with pytest.raises(GroupError) as raised:
        rpc.group().call(write_into, (x,))
    assert list(raised.value.errors) == ["worker2"]
    assert list(raised.value.results.values()) == [float(COUNT), 2.0 * COUNT]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(4, start_method="fork") as cluster:
        yield cluster


@pytest.mark.parametrize("program", [large_arguments, large_gradients, large_streams])
def test_program_on_four_workers(cluster, program) -> None:
    cluster.run("worker0", program)


def test_member_that_is_killed_fails_by_its_name() -> None:
    with ProcessCluster(3, start_method="fork") as cluster:
        cluster.run("worker0", large_streams)
        cluster.kill("worker2")
        cluster.run("worker0", a_member_is_dead)
