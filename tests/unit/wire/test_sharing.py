"""Tensors of one message that overlap in memory: what crosses, and what arrives of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lockstitch.ids import GlobalId
from lockstitch.wire.encodings import NOTHING
from lockstitch.wire.messages import Payload, Reply, Stitch
from lockstitch.wire.sharing import find_shared, overlaps_itself
from tests.unit.wire.route import cross, decode, frame_of

LARGE = 16 * 1024


def cross_items(items: list[torch.Tensor], stitched: tuple[int, ...] = ()) -> list[Any]:
    stitch = Stitch(1, GlobalId(0, 0, 1), stitched, ()) if stitched else None
    (message,) = decode([frame_of(Reply(1, stitch, Payload(NOTHING, b"", items)))])
    assert isinstance(message, Reply)
    return list(message.body.items)


def nbytes_of(*items: torch.Tensor) -> int:
    return len(frame_of(Reply(1, None, Payload(NOTHING, b"", items))))


# ---------------------------------------------------------------- what is sent


@pytest.mark.parametrize(
    "views",
    [
        lambda t: (t[3], t[1998]),
        lambda t: (t[3], t[1998], t[3], t[1998:2000]),
        lambda t: (t[:, 5], t[:, 700]),
        lambda t: (t[:, 5:8], t[:, 7:9], t[:, 600:602]),
        lambda t: (t[::500], t[::1000], t[1]),
        lambda t: (t[0:3], t[1:4], t[2:5]),
        lambda t: (t[5, 5], t[7, 7], t[5, 5:7]),
        lambda t: tuple(t[::4]),
        lambda t: tuple(t.t()[::300]),
        lambda t: (t[5].view(torch.int32), t[5:7], t[1999]),
        lambda t: (torch.view_as_complex(t.view(2000, 512, 2))[:, 3], t[:, 7]),
    ],
    ids=lambda view: "",
)
def test_no_more_than_what_is_viewed_crosses(views) -> None:  # type: ignore[no-untyped-def]
    table = torch.arange(2000 * 1024, dtype=torch.float32).view(2000, 1024)
    sent = views(table)
    assert nbytes_of(*sent) < 2.1 * sum(view.nbytes for view in sent) + 1000
    for arrived, view in zip(cross(sent), sent, strict=True):
        assert torch.equal(arrived, view)


def test_of_boxes_that_overlap_little_more_than_one_side_crosses() -> None:
    image = torch.zeros(50, 40, 1024)
    assert nbytes_of(image[:, 3:5, 8:10], image[:, 4:6, 8:10]) < 0.01 * image.nbytes


def test_what_is_viewed_more_than_once_crosses_once() -> None:
    table = torch.randn(1000, 100)
    assert nbytes_of(table, *table.unbind(), table.t(), table[:, 3:7]) < 1.2 * table.nbytes
    assert nbytes_of(*table.split(20, 1)) < 1.1 * table.nbytes


@pytest.mark.parametrize("step", [1, 700])
def test_windows_of_columns_that_overlap_still_do(step: int) -> None:
    table = torch.zeros(step * 64, 64)[::step]
    left, right = cross((table[:, 10:14], table[:, 13:15]))
    left.fill_(3)
    assert right.tolist() == [[3.0, 0.0]] * 64


def test_rows_that_lie_apart_have_storages_of_their_own() -> None:
    table = torch.randn(1000, 100)
    first, last = cross((table[0], table[999]))
    assert first.untyped_storage().nbytes() == last.untyped_storage().nbytes() == 400


# ---------------------------------------------------------------- what arrives


def test_overlapping_tensors_share_the_count_of_their_changes() -> None:
    leaf = torch.ones(3, requires_grad=True)
    same, plain, part = cross((leaf, leaf.detach(), torch.nn.Parameter(leaf.detach()[1:])))
    saved = (same * same).sum()
    plain.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
    assert part._version == plain._version == same._version
    assert same.is_leaf
    assert part.is_leaf


def test_a_differentiable_write_to_a_view_is_seen_in_the_others() -> None:
    numbers = torch.zeros(4, dtype=torch.complex128)
    whole, part, real = cross((numbers, numbers[1:], torch.view_as_real(numbers)))
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    part.copy_(leaf * 2)
    (whole.real.sum() + 10 * real[0].sum() + real[2, 0]).backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0, 4.0, 2.0]


def test_conjugate_and_negative_views_share_with_what_they_view() -> None:
    numbers = torch.randn(5, dtype=torch.complex64)
    sent = (numbers, numbers.conj(), numbers.conj().imag, numbers.real)
    whole, mirrored, negative, real = cross(sent)
    for arrived, was in zip((whole, mirrored, negative, real), sent, strict=True):
        assert torch.equal(arrived, was)
    mirrored[0] = 1 + 2j
    assert whole[0] == 1 - 2j
    assert negative[0] == 2
    assert real[0] == 1


def test_tied_weights_stay_tied() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(70, 70), torch.nn.Linear(70, 70))
    net[1].weight = net[0].weight
    state = cross(net.state_dict())
    state["0.weight"].zero_()
    assert not state["1.weight"].any()
    assert torch.equal(state["1.bias"], net[1].bias)


@pytest.mark.parametrize("count", [4, LARGE])
def test_tensors_of_a_stitch_overlap_nothing(count: int) -> None:
    x = torch.arange(float(count))
    one, other, plain, part = cross_items([x, x[1:], x.detach(), x[:2]], (0, 1))
    one.fill_(7)
    other.fill_(8)
    assert torch.equal(plain, x)
    plain[0] = 9
    assert part[0] == 9
    assert (one == 7).all()
    assert one._version == 1


def test_tensors_of_a_stitch_that_lie_side_by_side_cross_together_and_change_apart() -> None:
    table = torch.randn(100, 120, requires_grad=True)
    pieces = cross_items([each.detach() for each in table.split(30, 1)], (0, 1, 2, 3))
    pieces[0].zero_()
    assert [piece._version for piece in pieces] == [1, 0, 0, 0]
    assert torch.equal(torch.cat(pieces[1:], 1), table[:, 30:])
    assert [piece.stride() for piece in pieces] == [(120, 1)] * 4


@pytest.mark.parametrize(
    "view", [lambda t: t.expand(5, 40), lambda t: t.unfold(0, 4, 1), lambda t: t[:1].expand(9)]
)
def test_elements_of_a_tensor_of_a_stitch_do_not_overlap(view) -> None:  # type: ignore[no-untyped-def]
    sent = view(torch.arange(40.0))
    (arrived,) = cross_items([sent], (0,))
    assert torch.equal(arrived, sent)
    assert not overlaps_itself(arrived)
    assert overlaps_itself(cross_items([sent])[0])


def test_many_views_are_sorted_out_quickly() -> None:
    table = torch.zeros(200, 300)
    views = [table[i : i + 2, j : j + 2] for i in range(0, 200, 5) for j in range(0, 300, 5)]
    assert len(find_shared(views)) in (0, len(views))
    assert len(find_shared(views, range(len(views)))) in (0, len(views))


def test_whether_a_tensor_overlaps_itself() -> None:
    t = torch.zeros(4, 5, 6)
    for plain in (t, t.permute(2, 0, 1), t[:, ::2], t[:0], t[0, 0, 0], t.unsqueeze(1)):
        assert not overlaps_itself(plain)
    for folded in (t[0].unfold(1, 3, 1), t[:1, :1].expand(2, 2, 6), t.as_strided((2, 9), (4, 2))):
        assert overlaps_itself(folded)


# ---------------------------------------------------------------- any views


@st.composite
def views_of(draw: Any, base: torch.Tensor) -> torch.Tensor:
    view = base
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["slice", "select", "transpose", "view_as_real", "expand"]))
        if kind == "view_as_real" and view.is_complex() and not view.is_conj():
            view = torch.view_as_real(view)
        elif kind == "transpose" and view.dim() > 1:
            view = view.transpose(0, 1)
        elif kind == "expand":
            view = view.unsqueeze(0).expand(2, *view.shape)
        elif view.dim() and view.shape[0]:
            size = view.shape[0]
            start = draw(st.integers(0, size - 1))
            stop, step = draw(st.integers(start + 1, size)), draw(st.integers(1, 3))
            view = view[start] if kind == "select" else view[start:stop:step]
    return view


@st.composite
def messages(draw: Any) -> tuple[torch.Tensor, list[torch.Tensor], tuple[int, ...]]:
    shape = draw(st.sampled_from([(7,), (4, 5), (3, 4, 5), (40, 300), (300, 40)]))
    dtype = draw(st.sampled_from([torch.float64, torch.complex64]))
    base = torch.arange(torch.Size(shape).numel()).to(dtype).view(shape)
    views = draw(st.lists(views_of(base), min_size=1, max_size=6))
    stitched = draw(st.sets(st.integers(0, len(views) - 1)))
    return base, views, tuple(sorted(stitched))


@given(messages())
@example((t := torch.zeros(300, 40), [t[:, 3], t[1:, 2:4], t[0, 1:4]], ()))
def test_writes_are_seen_where_they_were_seen_at_the_sender_unless_stitched(message) -> None:  # type: ignore[no-untyped-def]
    base, views, stitched = message
    arrived = cross_items(views, stitched)
    model = [view.clone() if item in stitched else view for item, view in enumerate(views)]
    for place in range(len(views)):
        for one, other in zip(arrived, model, strict=True):
            assert torch.equal(one, other)
        for tensor in (arrived[place], model[place]):
            tensor[(0,) * tensor.dim()] = 100 + place
    del base
