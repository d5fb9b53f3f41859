"""Messages whose large parts lie in shared memory: the same values, where the sender put them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstitch import copying
from lockstitch.errors import RemoteProtocolError
from lockstitch.memory.sizes import ALIGNMENT, aligned
from lockstitch.wire.decoding import FrameDecoder
from lockstitch.wire.encoding import encode
from lockstitch.wire.frames import HEADER, IN_SEGMENT
from lockstitch.wire.messages import Reply
from lockstitch.wire.pickling import pack
from lockstitch.wire.tensors import DTYPES, INLINE_BYTES
from lockstitch.wire.unpickling import unpack
from lockstitch.wire.windows import WindowTensorReceiver
from tests.unit.wire.route import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable

BIG = INLINE_BYTES + 1


class Lease:
    def __init__(self) -> None:
        self.end: Callable[[], object] = int
        self.give_back: Callable[[], object] = list

    @property
    def is_taken(self) -> bool:
        return self.end is self.give_back


class Shared:
    """Memory of both sides; what is lent is not lent again."""

    def __init__(self, size: int = 1 << 21) -> None:
        self.memory = (ctypes.c_char * size)()
        self.number = 3
        self.asked: list[int] = []
        self.leases: list[Lease] = []
        self.cancelled = 0

    @property
    def address(self) -> int:
        return ctypes.addressof(self.memory)

    def lend(self, nbytes: int) -> Any:
        self.asked.append(nbytes)
        return self if nbytes <= len(self.memory) else None

    def cancel(self) -> None:
        self.cancelled += 1

    def window(self, number: int) -> tuple[Any, Lease]:
        assert number == self.number
        self.leases.append(Lease())
        return self.memory, self.leases[-1]

    def contains(self, address: int) -> bool:
        return self.address <= address < self.address + len(self.memory)


def cross(value: object, shared: Shared) -> Any:
    (frame,) = encode(Reply(1, None, pack(value, REGISTRY)[0]), lend=shared.lend)
    decoder = FrameDecoder(window=shared.window)
    decoder.feed(frame)
    (message,) = decoder.messages
    return unpack(message.body, REGISTRY)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [each for each in DTYPES if each is not None], ids=str)
def test_tensors_of_every_dtype_lie_in_the_window(dtype: torch.dtype) -> None:
    shared = Shared()
    tensor = torch.arange(BIG).remainder(100).to(torch.uint8).repeat(dtype.itemsize).view(dtype)
    tensor = tensor.reshape(1, -1, 1)
    arrived = cross((1, tensor), shared)[1]
    assert arrived.dtype is dtype
    assert arrived.shape == tensor.shape
    assert torch.equal(arrived.view(torch.uint8), tensor.view(torch.uint8))
    assert shared.contains(arrived.data_ptr())
    assert shared.leases[0].is_taken


def test_large_parts_are_aligned_and_small_ones_stay_in_the_frame() -> None:
    shared = Shared()
    values = (torch.ones(BIG, dtype=torch.uint8), torch.ones(3), torch.ones(5000).double())
    first, small, last = cross(values, shared)
    assert shared.asked == [aligned(BIG) + 40_000]
    assert (first.data_ptr() - shared.address, last.data_ptr() - shared.address) == (
        0,
        aligned(BIG),
    )
    assert aligned(BIG) % ALIGNMENT == 0
    assert not shared.contains(small.data_ptr())
    assert all(torch.equal(a, b) for a, b in zip((first, small, last), values, strict=True))


def test_tensors_that_share_a_storage_still_do() -> None:
    shared = Shared()
    base = torch.arange(20_000.0)
    whole, part, backwards = cross((base, base[100:200], base.view(100, 200).t()), shared)
    part += 1
    assert torch.equal(whole[100:200], torch.arange(100.0, 200.0) + 1)
    assert torch.equal(backwards, whole.view(100, 200).t())
    assert shared.contains(part.data_ptr())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_strides_survive_and_sparse_tensors_too() -> None:
    shared = Shared()
    strided = torch.arange(30_000.0).view(100, 300)[:, :290].t()
    sparse = torch.eye(3000).to_sparse_csr()
    a, b, c = cross((strided, sparse, sparse.to_sparse_coo()), shared)
    assert a.stride() == strided.stride()
    assert torch.equal(a, strided)
    assert torch.equal(b.to_dense(), torch.eye(3000))
    assert torch.equal(c.to_dense(), torch.eye(3000))


def test_arrays_and_bytes_and_long_streams_cross() -> None:
    shared = Shared()
    array = numpy.arange(40_000).reshape(200, 200)
    frozen = array.copy()
    frozen.flags.writeable = False
    raw = bytes(range(256)) * 1000
    got = cross({"a": array, "f": frozen, "r": raw, "t": "text" * 10_000}, shared)
    assert (got["a"] == array).all()
    assert (got["f"] == array).all()
    assert got["r"] == raw
    assert got["t"] == "text" * 10_000
    got["a"] += 1
    assert (array == numpy.arange(40_000).reshape(200, 200)).all()


def test_gradients_and_parameters_are_wanted_as_before() -> None:
    arrived = cross([torch.nn.Parameter(torch.ones(BIG)), torch.ones(BIG)], Shared())
    assert type(arrived[0]) is torch.nn.Parameter
    assert not arrived[1].requires_grad


def test_storage_cannot_be_resized_but_written_to() -> None:
    arrived = cross(torch.ones(BIG), Shared())
    arrived.mul_(2)
    with pytest.raises(RuntimeError, match="not resizable"):
        arrived.resize_(2 * BIG)


@given(st.lists(st.integers(1, 3 * INLINE_BYTES) | st.just(BIG), min_size=1, max_size=6))
def test_any_mixture_of_sizes_arrives(sizes: list[int]) -> None:
    values = [torch.full((size,), n, dtype=torch.uint8) for n, size in enumerate(sizes)]
    shared = Shared()
    if max(sizes) <= INLINE_BYTES:
        encode(Reply(1, None, pack(values, REGISTRY)[0]), lend=shared.lend)
        assert shared.asked == []
        return
    for value, arrived in zip(values, cross(values, shared), strict=True):
        assert torch.equal(value, arrived)


def test_without_a_loan_everything_follows_the_frame() -> None:
    message = Reply(1, None, pack(torch.ones(BIG), REGISTRY)[0])
    shared = Shared(size=100)
    buffers = encode(message, lend=shared.lend)
    assert [len(bytes(each)) for each in buffers] == [len(bytes(each)) for each in encode(message)]
    assert shared.asked


def test_interrupted_filling_cancels_the_loan(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    shared = Shared()
    payload = pack(torch.ones(BIG), REGISTRY)[0]
    with monkeypatch.context() as patch:
        patch.setattr(copying, "_move", interrupt)
        with pytest.raises(KeyboardInterrupt):
            encode(Reply(1, None, payload), lend=shared.lend)
    assert shared.cancelled == 1


# ---------------------------------------------------------------- what cannot be


def frame(tensor: torch.Tensor, shared: Shared) -> bytearray:
    (buffer,) = encode(Reply(1, None, pack(tensor, REGISTRY)[0]), lend=shared.lend)
    return bytearray(buffer)


def test_frame_that_needs_more_than_the_window_is_refused() -> None:
    shared = Shared()
    whole = frame(torch.ones(BIG), shared)
    shared.memory = (ctypes.c_char * 1000)()
    with pytest.raises(RemoteProtocolError, match="segment 3 has no room for 65,600 bytes"):
        FrameDecoder(window=shared.window).feed(whole)
    assert not shared.leases[0].is_taken


@pytest.mark.parametrize("announced", [BIG, 4 * BIG + 10_000])
def test_frame_whose_lengths_do_not_fit_is_refused(announced: int) -> None:
    shared = Shared()
    whole = frame(torch.ones(BIG), shared)
    inline, kind, flags, number, small, _ = HEADER.unpack_from(whole)
    HEADER.pack_into(whole, 0, inline, kind, flags, number, small, announced)
    with pytest.raises(RemoteProtocolError, match="than its tensors need"):
        FrameDecoder(window=shared.window).feed(whole)


def test_frame_in_a_segment_is_refused_where_there_are_none() -> None:
    whole = frame(torch.ones(BIG), Shared())
    with pytest.raises(RemoteProtocolError, match="names a segment, 3, where there can be none"):
        FrameDecoder().feed(whole)


def test_unknown_flags_are_refused() -> None:
    whole = frame(torch.ones(BIG), Shared())
    whole[5] = IN_SEGMENT + 1
    with pytest.raises(RemoteProtocolError, match="flags that are unknown"):
        FrameDecoder().feed(whole)


def test_stream_announced_as_large_must_be() -> None:
    receiver = WindowTensorReceiver(0, 0, 100, (ctypes.c_char * 100)())
    with pytest.raises(RemoteProtocolError):
        receiver.add_stream(100)
