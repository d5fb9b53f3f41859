"""A recommender in the form of DLRM, with 26 tables, as PyTorch's tutorials would write it.

Of each click 13 numbers and 26 bags of different lengths are known. The tables are `RemoteModule`s
of `nn.EmbeddingBag` on two servers, the dense part is replicated on two trainers, as in PyTorch's
tutorial on DDP and RPC. Both libraries run the same program, but for the dense part's gradients,
which `hvd` averages where the incumbent has DistributedDataParallel over Gloo. Trainers ask either
for one table by each call, as the tutorial does, or for all tables of a server at once.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from benchmarks.libraries import CALLEE, CALLER, FOURTH, LOCKSTITCH, THIRD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.cases.timing import Sample
    from benchmarks.libraries import Library

STEPS, WARM_STEPS = 10, 2
SERVERS, TRAINERS = (CALLER, CALLEE), (THIRD, FOURTH)
TABLES, NUMBERS = 26, 13
TABLES_RATE, DENSE_RATE = 0.01, 0.001
Bag = tuple[torch.Tensor, torch.Tensor]
"""The rows that a batch asks of a table, and at which of them the bag of each click begins."""


class Size(NamedTuple):
    """How wide the rows of the tables are, and how many clicks are in a batch."""

    width: int
    batch: int


class Tables(nn.ModuleList):
    """Some tables; asked for all of them at once."""

    def __init__(self, numbers: list[int], width: int) -> None:
        super().__init__(Table(number, width) for number in numbers)

    def forward(self, bags: list[Bag]) -> list[torch.Tensor]:
        return [table(*bag) for table, bag in zip(self, bags, strict=True)]


class Table(nn.EmbeddingBag):
    """Table of that number; those of a small number are large."""

    def __init__(self, number: int, width: int) -> None:
        generator = torch.Generator().manual_seed(number)  # others may be made at the same time
        weight = torch.randn(rows_of(number), width, generator=generator)
        super().__init__(rows_of(number), width, mode="sum", sparse=True, _weight=weight)


def rows_of(number: int) -> int:
    """How many rows a table has."""
    return 20_000 // (1 + number) + 10


class Dense(nn.Module):
    """Says how likely a click is, from numbers and from how well rows agree with each other."""

    pairs: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        count = (TABLES + 1) * TABLES // 2
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, width))
        self.top = nn.Sequential(nn.Linear(width + count, 64), nn.ReLU(), nn.Linear(64, 1))
        above = torch.triu_indices(TABLES + 1, TABLES + 1, 1)
        self.register_buffer("pairs", above[0] * (TABLES + 1) + above[1])

    def forward(self, numbers: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
        known = self.bottom(numbers)
        each = torch.stack([known, *rows], 1)
        agree = torch.bmm(each, each.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([known, agree], 1)).squeeze(1)


class Batch(NamedTuple):
    """Numbers, a bag of rows of each table with its offsets, and whether there was a click."""

    numbers: torch.Tensor
    bags: list[Bag]
    clicks: torch.Tensor


def batch_of(trainer: int, step: int, size: int) -> Batch:
    """What a trainer sees in that step; bags have one to three rows."""
    generator = torch.Generator().manual_seed(2 * step + trainer)
    bags = []
    for number in range(TABLES):
        lengths = torch.randint(1, 4, (size,), generator=generator)
        ends = lengths.cumsum(0)
        ids = torch.randint(rows_of(number), (int(ends[-1]),), generator=generator)
        bags.append((ids, ends - lengths))
    numbers = torch.rand(size, NUMBERS, generator=generator)
    return Batch(numbers, bags, (numbers.sum(1) > NUMBERS / 2).float())


def places_of(by_server: bool) -> list[tuple[str, list[int]]]:
    """Each remote module: on which worker it is, and which tables it has."""
    if by_server:
        return [(name, list(range(TABLES))[number::2]) for number, name in enumerate(SERVERS)]
    return [(SERVERS[number % 2], [number]) for number in range(TABLES)]


@contextlib.contextmanager
def recommender(library: Library, size: Size, by_server: bool) -> Iterator[Sample]:
    """Seconds per step of both trainers. `by_server`: they ask for all tables of a server by one
    call; else each table is a module of its own, and asked by a call of its own."""
    make = importlib.import_module(f"{library.name}.nn").RemoteModule
    modules = [
        make(name, Tables, (numbers, size.width))
        if by_server
        else make(name, Table, (*numbers, size.width))
        for name, numbers in places_of(by_server)
    ]
    with tempfile.TemporaryDirectory() as folder:
        places = (os.path.join(folder, str(number)) for number in itertools.count(29500))

        def sample() -> float:
            meeting_place = next(places)
            running = [
                library.rpc.rpc_async(
                    name,
                    train,
                    (library.name, modules, size, by_server, trainer, meeting_place),
                    timeout=0,
                )
                for trainer, name in enumerate(TRAINERS)
            ]
            return max(each.wait()[0] for each in running)

        yield sample


def train_in_one_process(size: Size) -> list[list[float]]:
    """The same: each trainer's gradients step the tables, and their mean the dense part. Returns
    the losses of each trainer."""
    tables, dense = [Table(number, size.width) for number in range(TABLES)], Dense(size.width)
    sparse = optim.SGD([table.weight for table in tables], lr=TABLES_RATE)
    adam = optim.Adam(dense.parameters(), lr=DENSE_RATE)
    losses: list[list[float]] = [[] for _ in TRAINERS]
    for step in range(WARM_STEPS + STEPS):
        sparse.zero_grad()
        adam.zero_grad()
        for trainer, of_trainer in enumerate(losses):
            numbers, bags, clicks = batch_of(trainer, step, size.batch)
            rows = [table(*bag) for table, bag in zip(tables, bags, strict=True)]
            loss = loss_of(dense(numbers, rows), clicks)
            loss.backward()
            of_trainer.append(loss.item())
        for parameter in dense.parameters():
            assert parameter.grad is not None
            parameter.grad /= len(TRAINERS)
        sparse.step()
        adam.step()
    return losses


def train(
    library: str, modules: list[Any], size: Size, by_server: bool, trainer: int, place: str
) -> tuple[float, list[float]]:
    """On a trainer: seconds per step, and its losses."""
    autograd, distributed = (
        importlib.import_module(f"{library}.{part}") for part in ("autograd", "optim")
    )
    replicate = _replicate_ours if library == LOCKSTITCH else _replicate_incumbents
    dense, step_dense, meet, close = replicate(Dense(size.width), trainer, place)
    parameters = [each for module in modules for each in module.remote_parameters()]
    tables = distributed.DistributedOptimizer(optim.SGD, parameters, lr=TABLES_RATE)
    batches = [batch_of(trainer, step, size.batch) for step in range(WARM_STEPS + STEPS)]
    losses, begun = [], 0.0
    for step, (numbers, bags, clicks) in enumerate(batches):
        if step == WARM_STEPS:
            begun = time.perf_counter()
        with autograd.context() as context_id:
            loss = loss_of(dense(numbers, look_up(modules, bags, by_server)), clicks)
            autograd.backward(context_id, [loss])
            step_dense(context_id)
            tables.step(context_id)
        losses.append(loss.item())
        meet()  # so that all see the same tables, and can be compared with one process
    seconds = (time.perf_counter() - begun) / STEPS
    close()
    return seconds, losses


def loss_of(scores: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
    """How wrong the scores of a batch are."""
    return nn.functional.binary_cross_entropy_with_logits(scores, clicks)


def look_up(modules: list[Any], bags: list[Bag], by_server: bool) -> list[torch.Tensor]:
    """The rows of all tables, in their order."""
    if not by_server:
        asked = [module.forward_async(*bag) for module, bag in zip(modules, bags, strict=True)]
        return [each.wait() for each in asked]
    asked = [
        module.forward_async([bags[number] for number in numbers])
        for module, (_, numbers) in zip(modules, places_of(by_server), strict=True)
    ]
    return [row for rows in zip(*(each.wait() for each in asked), strict=True) for row in rows]


class Replica(NamedTuple):
    """The dense part of a trainer, what steps it in an autograd context, what waits for the other
    trainer, and what ends it."""

    dense: nn.Module
    step: Callable[[int], object]
    meet: Callable[[], object]
    close: Callable[[], object]


def _replicate_ours(dense: nn.Module, trainer: int, meeting_place: str) -> Replica:
    hvd = importlib.import_module("lockstitch.hvd")
    # What a launcher tells.
    os.environ |= {"RANK": str(trainer), "WORLD_SIZE": "2", "LOCKSTITCH_STORE": meeting_place}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": os.path.basename(meeting_place)}
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optim.Adam(dense.parameters(), lr=DENSE_RATE))
    return Replica(dense, optimizer.step, hvd.barrier, hvd.shutdown)


def _replicate_incumbents(dense: nn.Module, trainer: int, meeting_place: str) -> Replica:
    rpc, distributed = map(
        importlib.import_module, ("torch.distributed.rpc", "torch.distributed.optim")
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{meeting_place}", rank=trainer, world_size=2)
    replica = DistributedDataParallel(dense)
    own = [rpc.RRef(parameter) for parameter in replica.parameters()]
    optimizer = distributed.DistributedOptimizer(optim.Adam, own, lr=DENSE_RATE)
    return Replica(replica, optimizer.step, dist.barrier, dist.destroy_process_group)
