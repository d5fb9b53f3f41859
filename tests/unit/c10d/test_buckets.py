"""Which tensors come to live where other ranks reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lockstitch.c10d.buckets import Buckets

if TYPE_CHECKING:
    from collections.abc import Callable


class Session:
    """Notes what it is to adopt."""

    def __init__(self) -> None:
        self.adopted: list[int] = []

    def adopt(self, tensor: torch.Tensor) -> bool:
        self.adopted.append(tensor.data_ptr())
        return True


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def buckets(session: Any) -> Buckets:
    return Buckets(session)


def in_backward(function: Callable[[object], None]) -> None:
    """Has the engine of torch call it, as it calls a process group."""
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(function)
    leaf.sum().backward()


def test_bucket_is_adopted_when_it_is_reduced_for_the_second_time(
    buckets: Buckets, session: Session
) -> None:
    bucket, found = torch.zeros(1 << 18), []
    for expected in ([], [bucket.data_ptr()], [bucket.data_ptr()]):
        in_backward(lambda _: found.append(buckets.look_at([bucket])))
        assert session.adopted == expected
    assert all(found)


def test_nothing_moves_that_python_has_a_view_of(buckets: Buckets, session: Session) -> None:
    bucket, found = torch.zeros(1 << 18), []
    array = bucket[5:].numpy()
    for _ in range(3):
        in_backward(lambda _: found.append(buckets.look_at([bucket])))
    assert all(found)
    assert session.adopted == []
    assert array[0] == 0


def test_nothing_moves_that_a_program_reduces_itself(buckets: Buckets, session: Session) -> None:
    bucket = torch.zeros(1 << 18)

    def reduce() -> None:
        assert not buckets.look_at([bucket])

    for _ in range(3):
        reduce()
        in_backward(lambda _: reduce())
    assert session.adopted == []


def test_small_tensors_and_several_at_once_stay(buckets: Buckets, session: Session) -> None:
    small, large, found = torch.zeros(100), torch.zeros(1 << 18), []
    for _ in range(3):
        in_backward(lambda _: found.append(buckets.look_at([small])))
        in_backward(lambda _: found.append(buckets.look_at([large, large])))
    assert not any(found)
    assert session.adopted == []
