"""The forms that return handles."""

from __future__ import annotations

import pytest
import torch

from lockstitch import hvd
from tests.cluster.hvd.ranks import on_ranks


def test_ranks_may_submit_in_any_order():
    def program():
        names = ["a", "b", "c"][:: 1 if hvd.rank() else -1]
        handles = {n: hvd.allreduce_async(torch.tensor([ord(n)]), name=n) for n in names}
        hvd.barrier()
        assert all(map(hvd.poll, handles.values()))
        return [hvd.synchronize(handles[n]).item() for n in "abc"]

    assert on_ranks(2, program) == [[97, 98, 99]] * 2


def test_in_place_forms_return_the_tensor_itself():
    def program():
        tensor = torch.full((3,), float(hvd.rank()), requires_grad=True)
        assert hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Sum)) is tensor
        group = [torch.ones(2), torch.ones(1, dtype=torch.bool)]
        results = hvd.synchronize(hvd.grouped_allreduce_async_(group, op=hvd.Sum))
        assert [a is b for a, b in zip(results, group, strict=True)] == [True, True]
        own = torch.tensor([hvd.rank()])
        assert hvd.synchronize(hvd.broadcast_async_(own, 1)) is own
        return tensor.tolist(), group[0].tolist(), own.item()

    assert on_ranks(2, program) == [([1.0, 1.0, 1.0], [2.0, 2.0], 1)] * 2


def test_new_tensors_leave_the_old_ones_alone():
    def program():
        one = torch.tensor([float(hvd.rank())])
        reduced = hvd.synchronize(hvd.allreduce_async(one))
        (grouped,) = hvd.synchronize(hvd.grouped_allreduce_async([one], average=False))
        sent = hvd.synchronize(hvd.broadcast_async(one, 1))
        assert one.item() == hvd.rank()
        return reduced.item(), grouped.item(), sent.item()

    assert on_ranks(2, program) == [(0.5, 1.0, 1.0)] * 2


def test_rows_are_gathered_scattered_and_exchanged():
    def program():
        rank = hvd.rank()
        rows = torch.full((rank + 1, 2), rank)
        gathered = hvd.synchronize(hvd.allgather_async(rows))
        both = hvd.synchronize(hvd.grouped_allgather_async([rows, rows + 1]))
        share = hvd.synchronize(hvd.reducescatter_async(torch.arange(3), op=hvd.Sum))
        (again,) = hvd.synchronize(hvd.grouped_reducescatter_async([torch.arange(3)], op=hvd.Max))
        splits = torch.tensor([1, rank])
        received, counts = hvd.synchronize(
            hvd.alltoall_async(torch.full((1 + rank,), rank), splits)
        )
        return (
            gathered[:, 0].tolist(),
            [each[:, 0].tolist() for each in both],
            share.tolist(),
            again.tolist(),
            received.tolist(),
            counts.tolist(),
        )

    gathered, both = [0, 1, 1], [[0, 1, 1], [1, 2, 2]]
    assert on_ranks(2, program) == [
        (gathered, both, [0, 2], [0, 1], [0, 1], [1, 1]),
        (gathered, both, [4], [2], [1], [0, 1]),
    ]


def test_a_name_is_taken_while_in_flight():
    def program():
        if hvd.rank() == 1:
            # Not before rank 0 has tried the name twice.
            hvd.broadcast(torch.ones(1), 0, name="tried")
            return hvd.allreduce(torch.ones(1), name="x").item()
        first = hvd.allreduce_async(torch.ones(1), name="x")
        with pytest.raises(ValueError, match=r"allreduce\.x"):
            hvd.allreduce_async(torch.ones(1), name="x")
        hvd.broadcast(torch.ones(1), 0, name="tried")  # the same session, another kind
        return first().item()

    assert on_ranks(2, program) == [1.0, 1.0]


def test_kinds_have_names_of_their_own():
    def program():
        reduced = hvd.allreduce_async(torch.ones(1), name="x")
        gathered = hvd.allgather_async(torch.ones(1), name="x")
        return reduced().item(), gathered().tolist()

    assert on_ranks(2, program) == [(1.0, [1.0, 1.0])] * 2


@pytest.mark.parametrize(("op", "expected"), [(hvd.Sum, 1.0), (hvd.Average, 0.5)])
def test_sparse_tensors_meet_at_their_places(op, expected):
    def program():
        rank = hvd.rank()
        places = torch.tensor([[rank, 2], [0, 1]])
        sparse = torch.sparse_coo_tensor(places, torch.ones(2), (3, 2), check_invariants=True)
        return hvd.sparse_allreduce_async(sparse, "embedding", op)().to_dense().tolist()

    one = expected
    assert on_ranks(2, program) == [[[one, 0], [one, 0], [0, 2 * one]]] * 2


def test_sparse_tensors_have_no_maximum():
    def program():
        with pytest.raises(ValueError, match="summed or averaged"):
            hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), None, hvd.Max)

    on_ranks(1, program)


def test_a_rank_without_the_entries_of_others_gets_them_too():
    def program():
        sparse = torch.sparse_coo_tensor(
            torch.zeros(1, hvd.rank(), dtype=torch.int64),
            torch.ones(hvd.rank(), 3),
            (2, 3),
            check_invariants=True,
        )
        return hvd.sparse_allreduce_async(sparse, None, hvd.Sum)().to_dense().tolist()

    assert on_ranks(2, program) == [[[1.0] * 3, [0.0] * 3]] * 2
