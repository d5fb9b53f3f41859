"""Tensors in memory: where they were said to be, kept, and good in every mode."""

from __future__ import annotations

import torch

from lockstitch.memory.views import Views


def views(size: int = 1024, most_kept: int = 2) -> Views:
    return Views(torch.zeros(size, dtype=torch.uint8), most_kept)


def test_tensors_lie_one_behind_the_other() -> None:
    memory = views()
    memory.tensor(64, torch.float32, (2, 3)).fill_(1.5)
    memory.tensor(128, torch.int64, (1,)).fill_(-1)
    assert memory.tensor(64, torch.float32, (7,)).tolist() == [1.5] * 6 + [0.0]
    assert memory.bytes[120:137].tolist() == [0] * 8 + [255] * 8 + [0]
    assert memory.tensor(64, torch.float32, (2, 3)).is_contiguous()


def test_strides_are_those_asked_for() -> None:
    memory = views()
    memory.tensor(0, torch.float64, (6,)).copy_(torch.arange(6))
    assert memory.tensor(0, torch.float64, (2, 3), (1, 2)).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert memory.tensor(8, torch.float64, ()).item() == 1
    assert memory.tensor(0, torch.float64, (0, 3)).shape == (0, 3)


def test_the_same_is_made_once_until_there_are_too_many() -> None:
    memory = views()
    first = memory.kept(0, torch.float32, (2,))
    assert memory.kept(0, torch.float32, (2,)) is first
    for begin in (4, 8):
        memory.kept(begin, torch.float32, (2,))
    assert memory.kept(0, torch.float32, (2,)) is not first


def test_memory_need_not_be_a_multiple_of_an_element() -> None:
    assert views(100).tensor(80, torch.complex128, (1,)).tolist() == [0]


def test_what_is_made_in_inference_mode_is_written_to_in_every_mode() -> None:
    memory = views()
    with torch.inference_mode():
        memory.kept(0, torch.float32, (2,)).fill_(1.0)
    memory.kept(0, torch.float32, (2,)).fill_(2.0)
    assert not memory.kept(0, torch.float32, (2,)).is_inference()
