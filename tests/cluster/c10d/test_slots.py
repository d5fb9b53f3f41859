"""What collectives and messages write between two steps, slots of `DataParallel` compute with."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lockstitch.nn import DataParallel
from lockstitch.testing import LocalCluster
from tests.cluster.c10d.test_process_group import Groups, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X = torch.arange(8.0).view(4, 2) / 8


class Net(nn.Module):
    """With a tensor of each sort that a slot may have a copy of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.frozen + self.shift


def averaged(group: Any, tensor: torch.Tensor, _rank: int) -> None:
    group.allreduce([tensor], options(is_async=False))


def averaged_later(group: Any, tensor: torch.Tensor, _rank: int) -> None:
    group.allreduce([tensor], options()).wait()


def broadcast(group: Any, tensor: torch.Tensor, _rank: int) -> None:
    group.broadcast([tensor.data], options(root=1, is_async=False))


def gathered(group: Any, tensor: torch.Tensor, _rank: int) -> None:
    group._allgather_base(tensor, tensor[:1].clone(), options()).wait()


def received(group: Any, tensor: torch.Tensor, rank: int) -> None:
    (group.recv([tensor], 1, 0) if rank == 0 else group.send([tensor], 0, 0)).wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2) as cluster, cluster["worker0"].active():
        yield cluster


@pytest.mark.parametrize("backend", ["shared_memory", "c10d"])
@pytest.mark.parametrize("places", [["cpu", "worker1"], ["cpu", "fork"], ["thread", "thread"]])
@pytest.mark.parametrize("write", [averaged, averaged_later, broadcast, gathered, received])
def test_slots_compute_with_what_was_written(
    cluster: LocalCluster,
    backend: str,
    places: list[str],
    write: Callable[[Any, torch.Tensor, int], None],
) -> None:
    net, other = Net(), Net()
    with (
        contextlib.closing(DataParallel(net, places)) as parallel,
        Groups(backend, 2) as groups,
        torch.no_grad(),
    ):
        for step in range(3):  # the same operation again takes another way
            for tensor in other.state_dict().values():
                tensor.fill_(step + 2.0)
            torch.testing.assert_close(parallel(X), copy.deepcopy(net)(X))
            for name, mine in net.state_dict(keep_vars=True).items():
                before, version = mine.tolist(), mine._version
                both = mine, other.get_parameter(name) if name != "shift" else other.shift
                groups.run(lambda group, rank, both=both: write(group, both[rank], rank))
                assert mine.tolist() != before
                assert mine._version == version  # it shows in nothing else
                torch.testing.assert_close(parallel(X), copy.deepcopy(net)(X))
