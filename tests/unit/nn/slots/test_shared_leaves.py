"""Parameters move to shared memory once, and stay what they were."""

from __future__ import annotations

import mmap
import os
import warnings

import pytest
import torch
from torch import nn

from lockstitch.nn.slots.shared_leaves import share


def test_values_strides_and_identity_stay():
    leaves = [
        nn.Parameter(torch.randn(3, 4)),
        nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.randn(5, dtype=torch.float64)),
        nn.Parameter(torch.empty(0)),
    ]
    before = [(each.detach().clone(), each.stride()) for each in leaves]
    addresses = [each.data_ptr() for each in leaves]
    assert share(leaves) >= sum(each.nbytes for each in leaves)
    for leaf, (values, strides), address in zip(leaves, before, addresses, strict=True):
        assert torch.equal(leaf, values)
        assert leaf.stride() == strides
        assert leaf.is_leaf
        assert leaf.requires_grad
        assert not leaf.numel() or leaf.data_ptr() != address


def test_what_is_shared_is_not_moved_again():
    first, second = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(16))
    share([first])
    address = first.data_ptr()
    assert share([first]) == 0
    assert share([first, second]) == 64
    assert first.data_ptr() == address


def test_tensors_of_one_storage_share_one_afterwards():
    whole = torch.arange(6.0)
    left, right = nn.Parameter(whole[:4]), nn.Parameter(whole[2:])
    share([left, right])
    with torch.no_grad():
        left[3] = 9
    assert right.tolist() == [2, 9, 4, 5]


def test_a_child_of_the_programs_own_does_not_write_to_its_parents_parameters():
    leaf = nn.Parameter(torch.ones(4))
    share([leaf])
    seen = mmap.mmap(-1, 8)
    with warnings.catch_warnings():
        # Newer Pythons warn of threads; this child starts and needs none.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            leaf.data[0] = 5
            seen[0] = int(leaf.data[0].item())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert seen[0] == 5
    assert leaf.tolist() == [1, 1, 1, 1]
    seen.close()


@pytest.mark.parametrize("leaf", [torch.ones(2, device="meta"), torch.eye(2).to_sparse()])
def test_what_is_no_plain_memory_is_refused(leaf):
    with pytest.raises(ValueError, match="use slots that are threads"):
        share([leaf])


def test_memory_is_that_of_the_cpu_whatever_the_default_device_is():
    leaf = nn.Parameter(torch.ones(4))
    with torch.device("meta"):
        assert share([leaf])
    assert leaf.tolist() == [1] * 4


def test_what_else_lies_in_their_memory_goes_with_them():
    leaf = nn.Parameter(torch.ones(4))
    view, apart = leaf.data[1:3], torch.ones(4)
    address = apart.data_ptr()
    share([leaf], [leaf, view, apart])
    with torch.no_grad():
        leaf.fill_(5)
    assert view.tolist() == [5, 5]
    assert apart.data_ptr() == address
