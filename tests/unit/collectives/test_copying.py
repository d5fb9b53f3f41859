"""Copies: the same values as torch's, whatever the tensors are like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from lockstitch.collectives.copying import copy, copy_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGE = 1 << 18


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(count).remainder(97).to(dtype)


@pytest.mark.parametrize("count", [0, 1, 1000, LARGE, LARGE + 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_a_copy_has_all_values_and_nothing_around_it_changes(
    count: int, dtype: torch.dtype
) -> None:
    around = torch.zeros(count + 2, dtype=dtype)
    source = numbers(count, dtype)
    copy(around[1:-1], source)
    assert torch.equal(around[1:-1], source)
    assert not around[0]
    assert not around[-1]


LAYOUTS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "transposed source": lambda: (torch.zeros(512, 512), numbers(LARGE).view(512, 512).t()),
    "transposed target": lambda: (torch.zeros(512, 512).t(), numbers(LARGE).view(512, 512)),
    "every second": lambda: (torch.zeros(LARGE), numbers(2 * LARGE)[::2]),
    "another type": lambda: (torch.zeros(LARGE), numbers(LARGE, torch.float64)),
    "repeated": lambda: (torch.zeros(512, 512), numbers(512)),
    "conjugate": lambda: (
        torch.zeros(LARGE, dtype=torch.complex64),
        (numbers(LARGE) * (1 + 2j)).conj(),
    ),
    "negative": lambda: (torch.zeros(LARGE), (numbers(LARGE) * (1 + 2j)).conj().imag),
    "with gradient": lambda: (torch.zeros(LARGE), numbers(LARGE).requires_grad_()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_is_copied_as_torch_would(layout: str) -> None:
    out, source = LAYOUTS[layout]()
    with torch.no_grad():
        copy(out, source)
    assert torch.equal(out, source.detach().to(out.dtype).expand_as(out))


def test_several_are_copied_each_to_its_own_place() -> None:
    sources = [numbers(count) for count in (3, LARGE, 0, LARGE + 1, 5)]
    outs = [torch.zeros(len(each)) for each in sources]
    copy_all(outs, sources)
    assert all(map(torch.equal, outs, sources))


def test_autograd_notices_that_a_saved_tensor_was_overwritten() -> None:
    leaf = torch.ones(LARGE, requires_grad=True)
    saved = numbers(LARGE)
    product = (leaf * saved).sum()
    copy(saved, torch.zeros(LARGE))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    saved = numbers(LARGE)
    product = (leaf * saved).sum()
    copy_all([saved], [torch.zeros(LARGE)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_leaf_that_wants_gradients_is_not_overwritten_behind_autograds_back() -> None:
    with pytest.raises(RuntimeError, match="requires grad"):
        copy(torch.ones(LARGE, requires_grad=True), torch.zeros(LARGE))
