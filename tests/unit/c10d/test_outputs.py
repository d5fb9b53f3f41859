"""Where results go: straight there, or copied at the end."""

from __future__ import annotations

import pytest
import torch

from lockstitch.c10d.outputs import Outputs, flat_input, joined


def test_contiguous_tensor_is_written_into_itself() -> None:
    outputs, wanted = Outputs(), torch.zeros(2, 3)
    outputs.flat(wanted).copy_(torch.arange(6.0))
    assert wanted.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert not outputs.are_copied


@pytest.mark.parametrize(
    "wanted",
    [
        torch.zeros(3, 2).t(),
        torch.zeros(2, 3, dtype=torch.complex64).conj(),
        torch.zeros(2, 6)[:, ::2],
    ],
    ids=["transposed", "conjugated", "strided"],
)
def test_other_layouts_are_copied_once(wanted: torch.Tensor) -> None:
    outputs = Outputs()
    vector = outputs.flat(wanted)
    vector.copy_(torch.arange(6.0))
    assert outputs.are_copied
    assert not wanted.any()
    outputs.copy_back()
    assert wanted.flatten().real.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    vector.zero_()
    outputs.copy_back()
    assert wanted.any()


def test_inputs_are_vectors_of_their_elements() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    assert flat_input(tensor).data_ptr() == tensor.data_ptr()
    assert flat_input(tensor.t()).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    assert flat_input(torch.tensor(7.0, requires_grad=True)).tolist() == [7.0]
    assert joined([tensor, torch.tensor(9.0)]).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 9.0]


def test_tensors_of_several_dtypes_are_not_joined() -> None:
    with pytest.raises(ValueError, match="one dtype"):
        joined([torch.ones(1), torch.ones(1).int()])


@pytest.mark.parametrize("layout", [torch.zeros(2, 3), torch.zeros(3, 2).t()], ids=["itself", "t"])
def test_a_graph_may_have_saved_what_is_received_into(layout: torch.Tensor) -> None:
    leaf = layout.clone().requires_grad_()
    piece = leaf.chunk(2)[0]  # of several views: autograd forbids it to be changed
    squares = leaf * leaf
    outputs = Outputs()
    outputs.flat(leaf.detach()).copy_(torch.arange(6.0))
    outputs.copy_back()
    assert piece.sum() == 3.0
    squares.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.sum() == 30.0  # of the weights of now, as with torch's own groups


def test_a_tensor_may_become_part_of_a_graph_while_it_is_received_into() -> None:
    outputs = Outputs()
    with torch.no_grad():
        wanted, given = torch.zeros(6), torch.arange(6.0)
        vector, source = outputs.flat(wanted).view(2, 3), flat_input(given).view(2, 3)
    wanted.requires_grad_()
    given.requires_grad_()
    vector.copy_(source)
    assert wanted.sum() == 15.0
    assert wanted.is_leaf
    assert not vector.requires_grad
