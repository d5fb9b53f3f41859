"""The recommender of many tables: both ways of asking ask for the same."""

from __future__ import annotations

import torch
from torch.futures import Future

from benchmarks.cases.many_tables import (
    TABLES,
    Dense,
    Size,
    Table,
    Tables,
    batch_of,
    look_up,
    places_of,
    train_in_one_process,
)

WIDTH = 4


class Local:
    """Stands for a remote module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def forward_async(self, *arguments: object) -> Future[object]:
        future: Future[object] = Future()
        future.set_result(self._module(*arguments))
        return future


def test_each_table_has_one_place() -> None:
    for by_server in (False, True):
        numbers = [number for _, each in places_of(by_server) for number in each]
        assert sorted(numbers) == list(range(TABLES))


def test_rows_are_the_same_whether_tables_are_asked_alone_or_together() -> None:
    bags = batch_of(0, 1, 8).bags
    alone = look_up([Local(Table(number, WIDTH)) for number in range(TABLES)], bags, False)
    places = places_of(by_server=True)
    together = look_up([Local(Tables(numbers, WIDTH)) for _, numbers in places], bags, True)
    assert all(map(torch.equal, alone, together))
    assert Dense(WIDTH)(torch.rand(8, 13), alone).shape == (8,)


def test_the_loss_falls_in_one_process() -> None:
    for losses in train_in_one_process(Size(WIDTH, 64)):
        assert sum(losses[-4:]) < sum(losses[:4])
