"""An epoch's data, divided among the ranks; what is left of it anew, when they change."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.hvd.basics import rank, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Gives each rank its part of `dataset`'s indices: for a `DataLoader`, and for `TorchState`.

    `record_batch` after each batch; then an epoch that was interrupted goes on with what no rank
    has processed. `set_epoch` after (not before) each epoch. All ranks get the same number of
    indices; some are given twice where the number does not divide. `shuffle`: in an order that
    `seed` and the epoch decide.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()
        self.indices = self._part()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: nothing is processed yet."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()
        self.indices = self._part()

    @property
    def processed_num(self) -> int:
        """How many indices are processed in this epoch, as far as this rank knows."""
        return len(self.processed_indices)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank has processed its batch number `batch_idx`, counted since the last `__iter__`
        from 0, of batches of `batch_size`."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """This rank has processed these."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Returns what batch number `batch_idx` of this rank consists of."""
        start = batch_idx * batch_size
        return self.indices[start : start + batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and what was processed in it."""
        return {"epoch": self.epoch, "processed_indices": self.processed_indices}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where a `state_dict` was made, among the ranks that are there now."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Divides what is left among the ranks that are there now, from the next `__iter__` on."""
        self.num_replicas = size()
        self.rank = rank()
        everything = range(len(self.dataset))
        self.remaining_indices = [i for i in everything if i not in self.processed_indices]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        self.indices = self._part()
        return iter(self.indices)

    def __len__(self) -> int:
        """Returns how many indices this rank gets."""
        return self.num_samples

    def _part(self) -> list[int]:
        order = list(self.remaining_indices)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        # Around again, as often as it takes: fewer may be left than there are ranks.
        padded = itertools.islice(itertools.cycle(order), self.total_size)
        return list(padded)[self.rank :: self.num_replicas]
