"""Tensors are allocated from headers that may lie, on threads in any mode, and never beyond what
the frame announces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import RemoteProtocolError
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.encodings import ONE_TENSOR
from lockstitch.wire.messages import Payload, Reply
from lockstitch.wire.tensor_receiver import TensorReceiver, finish
from lockstitch.wire.tensors import (
    INLINE_BYTES,
    PARAMETER,
    REQUIRES_GRAD,
    SHARED,
    SPARSE,
    STAGED,
    STRIDED,
)
from tests.unit.wire.route import cross

BYTES = torch.arange(INLINE_BYTES, dtype=torch.int64).to(torch.uint8)


def receiver(small: int = 0, bulk: int = 0) -> TensorReceiver:
    assert small <= BYTES.numel()
    return TensorReceiver(BYTES.data_ptr(), small, bulk)


def test_small_memories_are_filled_one_behind_the_other() -> None:
    incoming = receiver(small=6)
    incoming.add((4, (2,)))
    incoming.add(None)
    incoming.add(3)
    incoming.add((4, (1,)))
    first, nothing, buffer, last = incoming.items
    assert (first.tolist(), nothing, list(buffer), last.tolist()) == ([0, 1], None, [2, 3, 4], [5])
    incoming.check_complete()


def test_large_memories_become_targets() -> None:
    size = INLINE_BYTES + 1
    incoming = receiver(bulk=3 * size)
    incoming.add((4, (size,)))
    incoming.add(size)
    stream = incoming.add_stream(size)
    incoming.check_complete()
    for number, target in enumerate(incoming.targets):
        target[:] = bytes([number]) * size
    tensor, buffer = incoming.items
    assert tensor[-1] == 0
    assert buffer[-1] == 1
    assert stream[-1] == 2


@pytest.mark.parametrize(
    "header",
    [
        (4, (7,)),  # more than is there
        (4, (-1,)),
        (4, (-2, -3)),
        (4, (2.5,)),
        (4, "ab"),
        (4, 3),
        (4,),
        (),
        ("four", (1,)),
        (0xFF, (1,)),
        (4 | STRIDED, (2,), (1,), 0),
        (4 | STRIDED, (3,), (3,), 0, 6),  # beyond its memory
        (4 | STRIDED, (3,), (-1,), 3, 6),
        (4 | STRIDED, (2,), (1,), -1, 6),
        (4 | STRIDED, (2,), (1, 1), 0, 6),
        (4 | SHARED, (1,), (1,), 0, 0),  # shares with an item that there is not
        (4 | STRIDED | SHARED, (7,), (1,), 0, 6),  # beyond the storage that it shares
        (4 | STRIDED | SHARED, (2,), (1,), 5, 6),
        (4 | STRIDED | SHARED, (2,), (1,), -1, 6),
        (0 | STRIDED | SHARED, (1,), (1,), 1, 6),  # at a fraction of an element
        (4 | STRIDED | SHARED, (1,), (1,), 0, -6),
        (4 | SPARSE, (2,), 99, False, ()),
        (4 | SPARSE, (2,), 0, False, ((4, (1,)),)),
        (4 | SPARSE, (2,), 0, False, ((4, (6,)), (4, (0,)))),
        (4 | STAGED, (4, (9,)), "cpu", False),  # beyond the frame
        (4 | STAGED, (4, (6,)), "cpu"),
        (4 | STAGED, (4, (6,)), 0, False),
        (4 | STAGED, (4, (6,)), "cpu", 1),
        {"a": 1},
        "text",
        1.5,
        7,
        -1,
    ],
    ids=str,
)
def test_header_that_makes_no_sense_is_the_peers_fault(header: Any) -> None:
    incoming = receiver(small=6)
    with pytest.raises(RemoteProtocolError):  # noqa: PT012 - either may find it out
        incoming.add(header)
        incoming.check_complete()


def test_frame_longer_than_its_tensors() -> None:
    incoming = receiver(small=6)
    incoming.add((4, (5,)))
    with pytest.raises(RemoteProtocolError, match="longer"):
        incoming.check_complete()


def test_huge_announcement_is_refused_before_anything_is_allocated() -> None:
    for header in (
        (0, (1 << 60,)),
        (0, (1 << 40, 1 << 40)),
        1 << 62,
        (4 | STRIDED | SHARED, (1,), (1,), 0, 1 << 62),
    ):
        with pytest.raises(RemoteProtocolError, match="shorter than its tensors need"):
            receiver(small=6, bulk=100).add(header)


PLAIN = st.recursive(
    st.none()
    | st.integers()
    | st.integers(-10, 10)
    | st.floats()
    | st.text(max_size=3)
    | st.booleans(),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.lists(inner, max_size=4),
    max_leaves=8,
)
EXTENTS = st.lists(st.integers(-2, 1 << 40) | st.integers(-2, 8), max_size=4).map(tuple)
CODES = st.integers(0, 0x3FFF)


@given(
    st.lists(
        PLAIN
        | st.tuples(CODES, EXTENTS)
        | st.tuples(CODES, EXTENTS, EXTENTS, st.integers(-20, 20), st.integers(-2, 40))
        | st.tuples(
            CODES,
            EXTENTS,
            st.integers(-1, 6),
            st.booleans(),
            st.lists(st.tuples(CODES, EXTENTS)).map(tuple),
        )
        | st.tuples(CODES, st.tuples(CODES, EXTENTS), st.text()),
        max_size=3,
    ),
    st.integers(0, 64),
)
@pytest.mark.filterwarnings("ignore")
def test_no_header_can_do_harm(headers: list[Any], small: int) -> None:
    incoming = receiver(small=small, bulk=1 << 16)
    try:
        for header in headers:
            incoming.add(header)
        incoming.check_complete()
    except RemoteProtocolError:
        return
    for header, item in zip(headers, incoming.items, strict=True):
        finished = finish(header, item, as_leaf=False)
        assert not isinstance(finished, torch.Tensor) or finished.numel() <= 1 << 60


# ---------------------------------------------------------------- whoever reads may be in any mode


def test_reader_in_inference_mode_receives_ordinary_tensors() -> None:
    """It may be reading for another thread, which trains."""
    with torch.inference_mode():
        arrived = cross((torch.ones(3), torch.ones(20_000), torch.ones(2, 3).t()))
    assert not any(tensor.is_inference() for tensor in arrived)


def test_default_device_of_the_reader_does_not_matter() -> None:
    with torch.device("meta"):
        arrived = cross(
            (1, torch.ones(3, device="cpu"), torch.ones(20_000, device="cpu"), b"x" * 70_000)
        )
    assert arrived[1].is_cpu
    assert arrived[2].sum() == 20_000


def test_default_dtype_of_the_reader_does_not_matter() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        arrived = cross((torch.ones(3, dtype=torch.float32),))
    finally:
        torch.set_default_dtype(before)
    assert arrived[0].dtype is torch.float32


def test_reader_without_gradients_receives_leaves_that_require_them() -> None:
    with torch.no_grad():
        arrived = cross((torch.ones(3, requires_grad=True), torch.ones(3, 2).t().requires_grad_()))
    assert all(each.requires_grad and each.is_leaf for each in arrived)


# ---------------------------------------------------------------- finishing


def test_finish_makes_leaves_and_parameters_unless_a_stitch_follows() -> None:
    assert finish((REQUIRES_GRAD, ()), torch.ones(1), as_leaf=True).requires_grad
    assert not finish((REQUIRES_GRAD, ()), torch.ones(1), as_leaf=False).requires_grad
    parameter = finish((REQUIRES_GRAD | PARAMETER, ()), torch.ones(1), as_leaf=True)
    assert type(parameter) is torch.nn.Parameter
    assert type(finish((PARAMETER, ()), torch.ones(1), as_leaf=False)) is torch.Tensor


def test_tensor_of_another_device_is_left_as_it_is_until_it_is_opened() -> None:
    tensor = torch.ones(1)
    header = (STAGED | REQUIRES_GRAD, (0, (1,)), "cuda:0", False)
    assert finish(header, tensor, as_leaf=True) is tensor
    assert not tensor.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("size", [3, 10_000], ids=["small", "large"])
def test_indices_that_point_outside_a_sparse_tensor_are_refused(size: int) -> None:
    indices = torch.arange(size).unsqueeze(0)
    outside = torch.sparse_coo_tensor(
        indices + 1, torch.ones(size), (size,), check_invariants=False
    )
    rows = torch.sparse_csr_tensor(
        torch.tensor([0, size]),
        torch.arange(size) + 1,
        torch.ones(size),
        (1, size),
        check_invariants=False,
    )
    for tensor in (outside, rows):
        decoder = FrameDecoder()
        frame = encode(Reply(1, None, Payload(ONE_TENSOR, b"", (tensor,))))
        with pytest.raises(RemoteProtocolError, match="makes no sense"):
            decoder.feed(b"".join(frame))
        assert not decoder.messages


@pytest.mark.parametrize(
    "header",
    [
        (0, (b"x", 1 << 40)),
        (0, (-1, -4)),
        (0, (1 << 70, 0)),
        (0, (True,)),
        (SHARED | STRIDED, (b"x",), (1,), 0, 64),
        (SHARED | STRIDED, (1 << 70,), (1 << 70,), 0, 64),
    ],
)
def test_what_is_no_shape_is_refused_before_it_is_counted_with(header: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        TensorReceiver(0, 64, 1 << 30).add(header)
