"""Sums of sparse tensors (COO), as Gloo has them: only the entries that are there travel.

Each rank gathers the indices and values of all and adds them in the order of ranks, so that all get
the same bits. The shapes travel too: tensors of different shapes have indices that look alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lockstitch.c10d.outputs import Outputs
from lockstitch.c10d.requests import QUEUE
from lockstitch.collectives import Kind, ReduceOp, Reduction, Request
from lockstitch.errors import MismatchError
from lockstitch.modes import in_plain_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstitch.collectives import Handle
    from lockstitch.collectives.rank_names import RankNames


def is_sparse(tensors: Sequence[torch.Tensor]) -> bool:
    """Returns whether any of the tensors is in COO layout."""
    for each in tensors:  # noqa: SIM110 - no generator: this is asked about every reduction
        if each.layout is torch.sparse_coo:
            return True
    return False


def allreduce(tensors: Sequence[torch.Tensor], reduction: Reduction) -> Request:
    """The sum or average of one sparse tensor over all ranks. Raises `ValueError` for other
    operators, and for several tensors."""
    if len(tensors) != 1:
        raise ValueError(
            f"all_reduce takes one sparse tensor at a time, not {len(tensors)} tensors together"
        )
    if reduction.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ValueError(
            f"all_reduce of sparse tensors knows SUM and AVG, not {reduction.op.value}; make them "
            "dense (to_dense) for other operators"
        )
    tensor = tensors[0].detach().coalesce()
    shape = torch.tensor([[tensor.sparse_dim(), *tensor.shape]], device=tensor.device)
    return Request(
        Kind.ALLGATHER,
        queue=QUEUE,
        tensors=(tensor.indices().t().contiguous(), tensor.values().contiguous(), shape),
        is_group=True,
    )


class SparseOutputs(Outputs):
    """The sum of what was gathered, written into the tensor that the program gave."""

    def __init__(self, wanted: torch.Tensor, reduction: Reduction, names: RankNames) -> None:
        super().__init__()
        self._wanted = wanted
        self._reduction = reduction
        self._names = names
        self._is_written = False

    @property
    def are_copied(self) -> bool:
        return not self._is_written

    @in_plain_modes
    def copy_back(self, handle: Handle[Any] | None = None) -> None:
        """Adds up what was gathered. Raises `MismatchError` for tensors of different shapes."""
        assert handle is not None
        indices, values, shapes = handle.result()
        _check_shapes(shapes, self._names)
        counts = list(handle.rows[0])
        parts = zip(indices.split(counts), values.split(counts), strict=True)
        total: torch.Tensor | None = None
        for index, value in parts:
            scaled = value if self._reduction.prescale == 1.0 else value * self._reduction.prescale
            part = torch.sparse_coo_tensor(index.t(), scaled, self._wanted.shape)
            total = part if total is None else total + part
        assert total is not None
        if self._reduction.op is ReduceOp.AVERAGE:
            total = total / len(counts)
        with torch.no_grad():  # and not on an alias: the entries of a sparse tensor are its own
            self._wanted.copy_(total.coalesce())
        self._is_written = True


def _check_shapes(shapes: torch.Tensor, names: RankNames) -> None:
    rows = [tuple(row) for row in shapes.tolist()]
    holders: dict[tuple[int, ...], list[int]] = {}
    for rank, row in enumerate(rows):
        holders.setdefault(row, []).append(rank)
    if len(holders) > 1:
        told = "; ".join(
            f"{row[1:]} with {row[0]} sparse dimensions on {names.in_words(ranks)}"
            for row, ranks in holders.items()
        )
        raise MismatchError(f"ranks disagree about a sparse all_reduce. shape: {told}")
