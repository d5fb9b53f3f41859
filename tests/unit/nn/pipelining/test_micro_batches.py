"""Batches are cut into as many micro-batches as wanted, of almost the same size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies

from lockstitch.nn.parallel import Replicate, Shard
from lockstitch.nn.pipelining.micro_batches import count_rows, cut, sizes_of


@given(strategies.integers(1, 20), strategies.integers(0, 50))
def test_sizes_differ_by_one_row_at_most(chunks, more):
    sizes = sizes_of(chunks + more, chunks)
    assert (len(sizes), sum(sizes)) == (chunks, chunks + more)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_fewer_rows_than_micro_batches_are_refused():
    with pytest.raises(ValueError, match="3 rows cannot be cut into 4"):
        sizes_of(3, 4)


def test_structures_are_cut_and_other_values_repeated():
    batch = {"x": torch.arange(5), "names": ["a", torch.arange(10).view(5, 2)], "flag": True}
    first, second = cut(batch, [3, 2], 0)
    assert (first["x"].tolist(), second["x"].tolist()) == ([0, 1, 2], [3, 4])
    assert second["names"][1].tolist() == [[6, 7], [8, 9]]
    assert (first["names"][0], second["flag"]) == ("a", True)


def test_marks_say_what_else_to_do_with_an_argument():
    mask, rows = torch.ones(7), torch.arange(8).view(2, 4)
    first, second = cut((Replicate(mask), Shard(rows, 1)), [2, 2], 0)
    assert first[0] is second[0] is mask
    assert second[1].tolist() == [[2, 3], [6, 7]]


def test_all_tensors_must_have_as_many_rows():
    given = {"batch": (torch.zeros(4, 2), Replicate(torch.zeros(9))), "target": torch.zeros(3)}
    with pytest.raises(ValueError, match=r"batch\[0\] has 4 rows, but target has 3"):
        count_rows(given, 0)
    assert count_rows({"batch": given["batch"]}, 0) == 4
    assert count_rows({"batch": "no tensor"}, 0) is None


def test_a_tensor_without_the_dimension_is_named():
    with pytest.raises(ValueError, match=r"target has shape \(\) and no dimension 0"):
        count_rows({"target": torch.zeros(())}, 0)
