"""What one side of a forked slot writes the other reads, in place."""

from __future__ import annotations

import os

import pytest
import torch

from lockstitch.memory.mapping import create_file
from lockstitch.nn.slots.memory import OwnedMemory, ReadMemory
from lockstitch.nn.slots.messages import LARGEST, Leaves, MessageCodec

KEY = (1, 42)
LEAVES = [
    torch.zeros(2, 3),
    torch.zeros(4, dtype=torch.float64),
    torch.zeros(0, 5),
    torch.zeros(()),
    torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last),
]


@pytest.fixture
def boxes():
    there, back = create_file(), create_file()
    leaves = Leaves(LEAVES)
    both = [
        MessageCodec(OwnedMemory(there), ReadMemory(back), leaves),
        MessageCodec(OwnedMemory(back), ReadMemory(there), leaves),
    ]
    yield both
    both.clear()
    os.close(there)
    os.close(back)


TENSORS = {
    "dense": torch.arange(6.0).view(2, 3),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
    "boolean": torch.tensor([True, False, True]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j, 3]),
    "conjugate": torch.tensor([1 + 2j, 3]).conj(),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "sliced": torch.arange(10.0)[::2],
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_as_it_was(boxes, name):
    ours, theirs = boxes
    tensor = TENSORS[name]
    message = ours.encode(KEY, name, [tensor, None, tensor])
    assert theirs.key(message) == KEY
    body, (first, nothing, second), leaves = theirs.decode(message)
    assert (body, nothing, leaves) == (name, None, None)
    for arrived in (first, second):
        assert arrived.layout == tensor.layout
        torch.testing.assert_close(arrived, tensor)
    if name == "channels last":
        assert first.is_contiguous(memory_format=torch.channels_last)


def test_gradients_of_the_leaves_arrive_where_there_are_any(boxes):
    ours, theirs = boxes
    gradients = [torch.full(leaf.shape, i + 1.0, dtype=leaf.dtype) for i, leaf in enumerate(LEAVES)]
    _, _, arrived = theirs.decode(ours.encode(KEY, None, (), gradients))
    torch.testing.assert_close(arrived, gradients)
    gradients[1], gradients[0] = None, torch.eye(2, 3).to_sparse()
    _, _, arrived = theirs.decode(ours.encode(KEY, None, (), gradients))
    assert arrived[1] is None
    assert arrived[0].is_sparse
    torch.testing.assert_close(arrived[2:], gradients[2:])


def test_memory_is_used_again_and_again(boxes):
    ours, theirs = boxes
    for i in range(10):
        body, (tensor,), _ = theirs.decode(ours.encode(KEY, i, [torch.full((100,), float(i))]))
        assert tensor[0].item() == body
        del tensor
        ours.decode(theirs.encode(KEY, None))
    assert ours._own.reserved_bytes == 4096


def test_what_is_held_stays_as_it_is(boxes):
    ours, theirs = boxes
    held = []
    for i in range(5):
        held += theirs.decode(ours.encode(KEY, i, [torch.full((100,), float(i))]))[1]
        ours.decode(theirs.encode(KEY, None))
    assert [tensor[0].item() for tensor in held] == [0, 1, 2, 3, 4]


def test_a_large_object_goes_through_memory_too(boxes):
    ours, theirs = boxes
    message = ours.encode(KEY, "x" * 10 * LARGEST, [torch.ones(2)])
    assert len(message) < 1000
    body, (tensor,), _ = theirs.decode(message)
    assert len(body) == 10 * LARGEST
    assert tensor.tolist() == [1, 1]


def test_functions_without_a_name_can_be_sent(boxes):
    ours, theirs = boxes
    body, _, _ = theirs.decode(ours.encode(KEY, lambda x: x + 1))
    assert body(1) == 2
