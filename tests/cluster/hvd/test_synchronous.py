"""The forms that return results: values here, gradients in test_gradients.py."""

from __future__ import annotations

import pytest
import torch

from lockstitch import hvd
from lockstitch.hvd import Compression
from tests.cluster.hvd.ranks import on_ranks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.uint8])
def test_dtypes_and_layouts_that_the_original_refuses(dtype):
    def program():
        matrix = torch.eye(3, dtype=dtype).t()[:2]
        return hvd.allreduce(matrix, op=hvd.Max)

    for result in on_ranks(2, program):
        assert torch.equal(result, torch.eye(3, dtype=dtype)[:2])


@pytest.mark.parametrize("compression", [Compression.fp16, Compression.bf16])
def test_compressed_results_have_the_type_of_the_input(compression):
    def program():
        tensor = torch.full((4,), hvd.rank() + 0.5)
        one = hvd.allreduce(tensor, compression=compression)
        (two,) = hvd.grouped_allreduce([tensor], compression=compression, op=hvd.Sum)
        three = hvd.reducescatter(tensor, compression=compression)
        (four,) = hvd.grouped_reducescatter([tensor], compression=compression, op=hvd.Sum)
        assert all(each.dtype is torch.float32 for each in (one, two, three, four))
        return one[0].item(), two[0].item(), three.tolist(), four.tolist()

    assert on_ranks(2, program) == [(1.0, 2.0, [1.0, 1.0], [2.0, 2.0])] * 2


def test_in_place_forms():
    def program():
        one, two, three = (torch.full((2,), float(hvd.rank())) for _ in range(3))
        assert hvd.allreduce_(one, postscale_factor=2.0) is one
        assert hvd.grouped_allreduce_([two], op=hvd.Sum)[0] is two
        assert hvd.broadcast_(three, 1) is three
        return one[0].item(), two[0].item(), three[0].item()

    assert on_ranks(2, program) == [(1.0, 1.0, 1.0)] * 2


def test_gathering_and_exchanging():
    def program():
        rank = hvd.rank()
        gathered = hvd.allgather(torch.full((rank,), rank))
        one, two = hvd.grouped_allgather([torch.tensor([rank]), torch.tensor([-rank])])
        rows = hvd.alltoall(torch.arange(2) + 10 * rank)
        received, counts = hvd.alltoall(torch.arange(2), splits=[2, 0])
        assert counts.dtype is torch.int32
        return gathered.tolist(), one.tolist() + two.tolist(), rows.tolist(), received.tolist()

    common = [1], [0, 1, 0, -1]
    assert on_ranks(2, program) == [
        (*common, [0, 10], [0, 1, 0, 1]),
        (*common, [1, 11], []),
    ]


def test_mismatch_raises_on_every_rank_and_the_job_goes_on():
    def program():
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            hvd.allreduce(torch.ones(2 + hvd.rank()), name="w")
        with pytest.raises(hvd.HorovodInternalError, match="root"):
            hvd.broadcast(torch.ones(2), hvd.rank(), name="w")
        return hvd.allreduce(torch.ones(1), name="w").item()

    assert on_ranks(2, program) == [1.0, 1.0]


def test_a_reducescatter_cannot_combine_by_adasum():
    def program():
        with pytest.raises(hvd.HorovodInternalError, match="cannot combine by hvd.Adasum"):
            hvd.reducescatter(torch.ones(4), op=hvd.Adasum)
        with pytest.raises(hvd.HorovodInternalError, match="cannot combine by hvd.Adasum"):
            hvd.grouped_reducescatter_async([torch.ones(4)], op=hvd.Adasum)

    assert on_ranks(2, program) == [None] * 2


@pytest.mark.parametrize(
    "operation",
    [
        hvd.grouped_allreduce,
        hvd.grouped_allreduce_,
        hvd.grouped_allgather,
        hvd.grouped_reducescatter,
        hvd.grouped_allreduce_async,
    ],
)
def test_a_group_of_nothing_has_no_results(operation):
    def program():
        results = operation([])
        return hvd.synchronize(results) if operation is hvd.grouped_allreduce_async else results

    assert on_ranks(2, program) == [[], []]
