"""Every sort of tensor arrives as it left: values, dtype, shape, strides, layout, sharing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstitch.errors import SerializationError
from lockstitch.wire.sharing import find_shared
from lockstitch.wire.tensors import (
    DTYPES,
    INLINE_BYTES,
    Memory,
    describe,
    describe_plain,
    is_spread,
)
from tests.unit.wire.route import cross

SENDABLE = [dtype for dtype in DTYPES if dtype is not None]
LARGE = INLINE_BYTES + 8


def some(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Arbitrary bits of that dtype."""
    count = max(1, torch.Size(shape).numel()) * dtype.itemsize
    generator = torch.Generator().manual_seed(count)
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)[: torch.Size(shape).numel()].view(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Equal for two tensors exactly when all their bits are, NaN or not."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def assert_arrives(tensor: torch.Tensor) -> torch.Tensor:
    arrived = cross(tensor)
    assert isinstance(arrived, torch.Tensor)
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(bits(arrived), bits(tensor))
    return arrived


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", SENDABLE, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4), (0, 5), (LARGE,)], ids=str)
def test_every_dtype_in_every_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    arrived = assert_arrives(some(shape, dtype))
    assert arrived.is_contiguous()
    assert not arrived.requires_grad


def test_dtypes_that_torch_has_are_not_forgotten() -> None:
    torchs = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    # Bits, sub-byte and quantized types have no plain memory of their own.
    rest = {str(each) for each in torchs - set(SENDABLE)}
    assert not [name for name in rest if not any(part in name for part in ("int", "bit", "x2"))]


@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8, torch.qint32], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_quantized_tensor_arrives_by_its_own_pickling(dtype: torch.dtype) -> None:
    tensor = torch.quantize_per_tensor(torch.randn(5, 3), 0.1, 0, dtype)
    arrived = cross(tensor)
    assert arrived.dtype is dtype
    assert torch.equal(arrived.dequantize(), tensor.dequantize())
    assert torch.equal(cross((1, tensor))[1].dequantize(), tensor.dequantize())


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, 1:],
        lambda t: t[::2, ::3],
        lambda t: t.permute(1, 0)[2:],
        lambda t: t[3],
        lambda t: t[:, 4],
        lambda t: t[1:1],
        lambda t: t.unsqueeze(1).expand(-1, 7, -1),
        lambda t: t.diagonal(),
        lambda t: t.unfold(0, 3, 1),
    ],
    ids=lambda view: "",
)
@pytest.mark.parametrize("side", [8, 80], ids=["inline", "bulk"])
def test_views_keep_values_and_strides(view, side: int) -> None:  # type: ignore[no-untyped-def]
    tensor = view(torch.arange(side * side, dtype=torch.float64).view(side, side))
    arrived = assert_arrives(tensor)
    compacted = tensor.untyped_storage().nbytes() > 8192 and not arrived.storage_offset()
    if tensor.numel() > 1 and not compacted:
        assert arrived.stride() == tensor.stride()


def test_strides_of_a_large_transpose_survive() -> None:
    tensor = torch.randn(90, 110).t()
    assert assert_arrives(tensor).stride() == (1, 110)


def test_only_the_viewed_part_of_a_storage_crosses() -> None:
    arrived = assert_arrives(torch.randn(1000, 1000)[500, 10:20])
    assert arrived.untyped_storage().nbytes() == 40


def test_sparse_view_of_a_large_storage_crosses_compact() -> None:
    arrived = assert_arrives(torch.randn(1000, 1000)[:, 5])
    assert arrived.untyped_storage().nbytes() == 4000


def test_expanded_tensor_stays_small() -> None:
    arrived = assert_arrives(torch.randn(1).expand(100_000))
    assert arrived.untyped_storage().nbytes() == 4
    assert arrived.stride() == (0,)


@pytest.mark.parametrize("size", [3, LARGE])
def test_conjugate_and_negative_bits_are_resolved(size: int) -> None:
    tensor = torch.randn(size, dtype=torch.complex64)
    assert torch.equal(assert_arrives(tensor.conj()), tensor.conj())
    assert torch.equal(assert_arrives(tensor.conj().imag), tensor.conj().imag)


# ---------------------------------------------------------------- sharing


@pytest.mark.parametrize("size", [10, LARGE])
def test_tensors_of_one_message_that_share_a_storage_still_do(size: int) -> None:
    base = torch.zeros(size)
    whole, part, again = cross((base, base[2:5], base.view(-1, 2)))
    whole[3] = 7.0
    assert part.tolist() == [0.0, 7.0, 0.0]
    assert again[1, 1] == 7.0


def test_views_share_although_the_base_is_not_sent() -> None:
    base = torch.arange(10.0)
    left, right = cross([base[1:6], base[4:9]])
    left[4] = -1.0
    assert right.tolist() == [4.0, -1.0, 6.0, 7.0, 8.0]


def test_sharing_across_dtypes() -> None:
    base = torch.randn(6, dtype=torch.complex64)
    whole, parts = cross((base, torch.view_as_real(base)))
    assert torch.equal(torch.view_as_real(whole), parts)
    parts.zero_()
    assert not whole.any()


def test_sharing_across_dtypes_when_the_lowest_byte_is_not_aligned() -> None:
    raw = torch.arange(64, dtype=torch.uint8)
    bytes_, floats = cross((raw[1:30], raw[4:20].view(torch.float32)))
    assert torch.equal(bytes_, raw[1:30])
    assert torch.equal(bits(floats), raw[4:20])


def test_empty_view_beside_its_base() -> None:
    base = torch.arange(10.0)
    whole, empty, part = cross((base, base[3:3], base[4:6]))
    assert empty.shape == (0,)
    assert torch.equal(whole, base)
    assert torch.equal(part, base[4:6])


def test_same_tensor_twice_arrives_as_one() -> None:
    tensor = torch.randn(3)
    first, second = cross((tensor, tensor))
    assert first is second
    one, two, three, four = cross([tensor, other := torch.randn(2), tensor, other])
    assert one is three
    assert two is four
    assert torch.equal(two, other)
    nested = cross({"a": [tensor], "b": {"c": tensor}})
    assert nested["a"][0] is nested["b"]["c"]
    assert torch.equal(nested["a"][0], tensor)


def test_tensors_from_one_numpy_array_share_as_well() -> None:
    array = torch.zeros(8).numpy()
    one, other = cross((torch.from_numpy(array), torch.from_numpy(array)))
    one[0] = 5
    assert other[0] == 5


def test_two_messages_share_nothing() -> None:
    tensor = torch.zeros(3)
    first, second = cross(tensor), cross(tensor)
    first.fill_(1)
    assert not second.any()


# ---------------------------------------------------------------- sparse


def example_of(layout: torch.layout) -> torch.Tensor:
    dense = torch.tensor([[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 5.0]])
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        return dense.to_sparse(layout=layout, blocksize=(2, 2))
    return dense.to_sparse(layout=layout)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "layout",
    [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc],
    ids=str,
)
@pytest.mark.parametrize("is_leaf", [False, True])
def test_sparse_layouts(layout: torch.layout, is_leaf: bool) -> None:
    tensor = example_of(layout).requires_grad_(is_leaf)
    arrived = cross(tensor)
    assert arrived.layout is layout
    assert arrived.requires_grad is is_leaf
    assert torch.equal(arrived.detach().to_dense(), tensor.detach().to_dense())


def test_coalesced_stays_coalesced_and_uncoalesced_stays_so() -> None:
    indices = torch.tensor([[0, 1, 1], [2, 0, 0]])
    raw = torch.sparse_coo_tensor(
        indices, torch.tensor([1.0, 2.0, 3.0]), (2, 3), check_invariants=True
    )
    arrived, merged = cross((raw, raw.coalesce()))
    assert not arrived.is_coalesced()
    assert arrived._nnz() == 3
    assert merged.is_coalesced()
    assert torch.equal(arrived.to_dense(), raw.to_dense())
    assert torch.equal(merged.to_dense(), raw.to_dense())


def test_large_and_hybrid_sparse_tensors() -> None:
    indices = torch.randint(0, 1000, (2, 5000))
    tensor = torch.sparse_coo_tensor(
        indices, torch.randn(5000, 3), (1000, 1000, 3), check_invariants=True
    )
    arrived = cross(tensor)
    assert torch.equal(arrived._indices(), indices)
    assert torch.equal(arrived._values(), tensor._values())
    assert arrived.dense_dim() == 1


def test_empty_sparse_tensor() -> None:
    arrived = cross(torch.zeros(3, 4).to_sparse())
    assert arrived._nnz() == 0
    assert arrived.shape == (3, 4)


# ---------------------------------------------------------------- gradients, parameters, the rest


@pytest.mark.parametrize("size", [4, LARGE])
def test_requires_grad_survives_as_a_leaf(size: int) -> None:
    leaf = torch.randn(size, requires_grad=True)
    inner = leaf * 2
    for arrived in (cross(leaf), *cross((inner, leaf[:2]))):
        assert arrived.requires_grad
        assert arrived.is_leaf


def test_parameter_arrives_as_parameter_with_its_requires_grad() -> None:
    for wants in (True, False):
        arrived = cross(torch.torch.nn.Parameter(torch.randn(3), requires_grad=wants))
        assert type(arrived) is torch.nn.Parameter
        assert arrived.requires_grad is wants


def test_module_arrives_with_parameters_buffers_and_ties() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    module.tied = module[0].weight
    arrived = cross(module)
    for (name, sent), (same, got) in zip(
        module.state_dict().items(), arrived.state_dict().items(), strict=True
    ):
        assert name == same
        assert torch.equal(sent, got)
    assert all(type(each) is torch.nn.Parameter for each in arrived.parameters())
    assert arrived.tied is arrived[0].weight


class Marked(torch.Tensor):
    """A subclass; it keeps its own pickling."""


def test_subclass_keeps_its_type() -> None:
    arrived = cross(torch.randn(3).as_subclass(Marked))
    assert type(arrived) is Marked


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_arrive_by_their_own_pickling(layout: torch.layout) -> None:
    parts = [torch.ones(2, 3), torch.arange(3.0).reshape(1, 3)]
    for value in (
        torch.nested.nested_tensor(parts, layout=layout),
        torch.nn.Parameter(torch.nested.nested_tensor(parts, layout=layout)),
    ):
        arrived, one = cross((value, torch.ones(1)))
        assert arrived.is_nested
        assert type(arrived) is type(value)
        assert all(
            torch.equal(mine, its) for mine, its in zip(parts, arrived.unbind(), strict=True)
        )
        assert torch.equal(one, torch.ones(1))


def test_meta_tensor_is_refused_with_a_reason() -> None:
    meta = torch.empty(3, device="meta")
    for value in (meta, (1, meta), {"nested": [meta]}):
        with pytest.raises(SerializationError, match="meta device has no data"):
            cross(value)


def test_arrived_tensor_can_be_written_in_place() -> None:
    for tensor in (torch.zeros(3), torch.zeros(LARGE), torch.zeros(3, 3).t()):
        cross(tensor).add_(1)


def test_sender_may_change_its_tensor_after_the_frame_was_decoded() -> None:
    tensor = torch.zeros(LARGE)
    arrived = cross(tensor)
    tensor.fill_(1)
    assert not arrived.any()


def test_sending_leaves_the_tensor_as_it_was() -> None:
    leaf = torch.randn(3, 4, requires_grad=True)
    before, version = leaf.detach().clone(), leaf._version
    cross((leaf, leaf.t()))
    assert leaf.is_leaf
    assert leaf.requires_grad
    assert leaf._version == version
    assert torch.equal(leaf.detach(), before)


@given(
    shape=st.lists(st.integers(0, 6), max_size=4).map(tuple),
    order=st.randoms(use_true_random=False),
    starts=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    steps=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_any_view_arrives(shape, order, starts, steps) -> None:  # type: ignore[no-untyped-def]
    base = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)
    dims = list(range(len(shape)))
    order.shuffle(dims)
    view = base.permute(dims)[
        tuple(slice(a, None, b) for a, b in zip(starts, steps, strict=True))[: len(shape)]
    ]
    together = cross((view, base, view))
    alone = cross(view)
    assert torch.equal(alone, view)
    assert torch.equal(together[0], view)
    assert torch.equal(together[1], base)


# ---------------------------------------------------------------- the pieces themselves


def test_header_of_a_contiguous_tensor_is_only_code_and_shape() -> None:
    memories: list[Memory] = []
    header = describe(torch.zeros(2, 3), memories, {}, 0)
    assert header == (0, (2, 3))
    assert [memory.nbytes for memory in memories] == [24]


def test_tensors_that_share_nothing_are_not_looked_for() -> None:
    assert find_shared([torch.zeros(3), torch.zeros(3), None, memoryview(b"x")]) == {}


STORAGE = torch.arange(64.0)
APART = [
    STORAGE[:8],
    None,
    STORAGE[10:12].view(2, 1),
    torch.ones(LARGE),
    torch.empty(0),
    STORAGE[60],
]


def test_plain_tensors_that_are_apart_are_described_the_short_way_too() -> None:
    wanted = [torch.ones(3, requires_grad=True), *APART]
    found = describe_plain(wanted)
    assert found is not None
    memories: list[Memory] = []
    headers = [None if each is None else describe(each, memories, {}, 0) for each in wanted]
    assert found[0] == tuple(headers)
    assert [each.copy() for each in found[1]] == [each.copy() for each in memories]


@pytest.mark.parametrize(
    "other",
    [
        STORAGE[7:9],  # overlaps
        STORAGE[8:10],  # touches
        STORAGE[20:40].view(4, 5).t(),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.eye(2).to_sparse(),
        memoryview(b"12"),
    ],
    ids=["overlaps", "touches", "transposed", "parameter", "conjugate", "sparse", "buffer"],
)
def test_others_are_described_the_long_way(other: object) -> None:
    assert describe_plain([*APART, other]) is None
    assert describe_plain([other, *APART]) is None


def test_what_is_spread_is_sent_as_a_copy() -> None:
    for tensor, spread in [
        (torch.ones(4, 6), False),
        (torch.ones(4, 6).t(), False),
        (torch.ones(4, 6)[:, 1:5], False),
        (torch.ones(4, 6)[:, :2], True),
        (torch.ones(()).expand(4, 6), False),
    ]:
        assert is_spread(tensor) == spread
