"""Tensors that ride on messages: what comes out is what the arithmetic of all backends gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lockstitch.collectives.arithmetic import can_reduce, reduce, scaled_copy
from lockstitch.collectives.c10d import riding
from lockstitch.collectives.process_sets import ProcessSet
from lockstitch.collectives.request_cache import CachedRequest, RequestCache
from lockstitch.collectives.requests import (
    SUM,
    Description,
    Kind,
    ReduceOp,
    Reduction,
    Request,
    describe,
)
from lockstitch.errors import ProtocolError

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
]
SHAPES = [(), (1,), (3,), (0,), (2, 0), (4, 3), (7, 1, 2)]


@st.composite
def groups(draw: st.DrawFn) -> tuple[Reduction, list[tuple[tuple[int, ...], torch.dtype]]]:
    op = draw(st.sampled_from([*ReduceOp]))
    dtypes = [dtype for dtype in DTYPES if can_reduce(dtype, op)]
    kinds = st.tuples(st.sampled_from(SHAPES), st.sampled_from(dtypes))
    factors = st.sampled_from([1.0, 0.5, 3.0])
    return Reduction(op, draw(factors), draw(factors)), draw(
        st.lists(kinds, min_size=1, max_size=3)
    )


@given(groups(), st.integers(1, 5), st.integers(0, 2), st.randoms(use_true_random=False))
def test_result_is_that_of_the_arithmetic_bit_for_bit(
    group: tuple[Reduction, list[tuple[tuple[int, ...], torch.dtype]]],
    ranks: int,
    joined: int,
    random: object,
) -> None:
    reduction, kinds = group
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))  # type: ignore[attr-defined]
    parts = [
        [(5 * torch.randn(shape, generator=generator)).to(dtype) for shape, dtype in kinds]
        for _ in range(ranks)
    ]
    description = describe(Request(Kind.ALLREDUCE, "x", tuple(parts[0]), reduction=reduction))
    contents = [riding.packed(part, reduction.prescale) for part in parts]
    assume(contents[0])  # nothing is nothing to ride
    assert all(riding.checked(content, description) == content for content in contents)
    result = riding.reduced(description, contents, ranks + joined)
    found = riding.unpacked(result, description)
    for index, (shape, dtype) in enumerate(kinds):
        scaled = [torch.empty(shape, dtype=dtype) for _ in parts]
        for part, out in zip(parts, scaled, strict=True):
            scaled_copy(part[index], reduction.prescale, out)
        wanted = reduce(reduction, scaled, ranks + joined, torch.empty(shape, dtype=dtype))
        assert found[index].dtype is dtype
        assert found[index].shape == shape
        assert riding.packed([found[index]]) == riding.packed([wanted])  # NaNs, too


def test_layout_of_a_tensor_does_not_matter() -> None:
    whole = torch.arange(12.0).view(3, 4)
    assert riding.packed([whole.t()]) == riding.packed([whole.t().contiguous()])
    complex_numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert riding.packed([complex_numbers.conj()]) == riding.packed(
        [torch.tensor([1 - 2j, 3 + 4j])]
    )


@pytest.mark.parametrize("size", [0, 11, 13])
def test_bytes_of_other_tensors_are_refused(size: int) -> None:
    description = Description(Kind.ALLREDUCE, "x", ("float32",), ((3,),), SUM)
    with pytest.raises(ProtocolError, match=f"{size} bytes, which are none of 'x'"):
        riding.checked(bytes(size), description)


def test_bytes_where_none_can_be_are_refused() -> None:
    description = Description(Kind.BROADCAST, "x", ("float32",), ((3,),), root=0)
    with pytest.raises(ProtocolError):
        riding.checked(bytes(12), description)


def test_what_this_torch_cannot_reduce_goes_by_an_order() -> None:
    description = Description(Kind.ALLREDUCE, "x", ("complex64",), ((1,),), Reduction(ReduceOp.MAX))
    assert riding.checked(bytes(8), description) == b""


def cached(name: str, count: int, kind: Kind = Kind.ALLREDUCE, number: int = 0) -> CachedRequest:
    reduction = SUM if kind is Kind.ALLREDUCE else None
    root = 0 if kind is Kind.BROADCAST else -1
    request = Request(kind, name, (torch.empty(count),), reduction=reduction, root=root)
    known = RequestCache(0).of(request, ProcessSet(0, (0, 1)), lambda _key: False)
    known.number = number
    return known


def test_large_tensors_do_not_ride() -> None:
    allowance = riding.Allowance(16 << 10)
    assert allowance.claim(cached("x", 4096, number=1), 2)
    assert not riding.Allowance(16 << 10).claim(cached("x", 4097), 2)
    assert not riding.Allowance(0).claim(cached("x", 1), 2)


def test_tensors_of_many_ranks_do_not_ride() -> None:
    assert riding.Allowance(16 << 10).claim(cached("x", 4096), 4)
    assert not riding.Allowance(16 << 10).claim(cached("x", 4096), 5)


@pytest.mark.parametrize("kind", [Kind.BROADCAST, Kind.ALLGATHER])
def test_what_is_no_reduction_does_not_ride(kind: Kind) -> None:
    assert not riding.Allowance(16 << 10).claim(cached("x", 4, kind), 2)


def test_more_rides_when_some_has_come_back() -> None:
    allowance = riding.Allowance(1000)
    assert allowance.claim(cached("a", 150, number=1), 2)
    assert not allowance.claim(cached("b", 150, number=2), 2)
    assert allowance.claim(cached("c", 100, number=3), 2)
    allowance.release(2)  # which does not ride
    assert not allowance.claim(cached("d", 1, number=4), 2)
    allowance.release(1)
    assert allowance.claim(cached("b", 150, number=2), 2)
