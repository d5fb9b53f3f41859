"""Tensors over places, compared with plain formulas."""

from __future__ import annotations

import pytest
import torch

from lockstitch.nn.parallel import comm

X = torch.arange(10.0).view(5, 2)


def test_broadcast_gives_the_first_place_the_tensor_and_the_others_copies() -> None:
    first, second, third = comm.broadcast(X, [0, 1, 2])
    assert first is X
    assert torch.equal(second, X)
    assert len({tensor.data_ptr() for tensor in (first, second, third)}) == 3


def test_broadcast_into_given_tensors() -> None:
    targets = [torch.empty(5, 2), torch.empty(5, 2, dtype=torch.float64)]
    assert all(
        got is target for got, target in zip(comm.broadcast(X, out=targets), targets, strict=True)
    )
    assert all(torch.equal(target.float(), X) for target in targets)


@pytest.mark.parametrize("arguments", [{}, {"devices": [0], "out": [X]}])
def test_broadcast_wants_devices_or_out(arguments: dict[str, object]) -> None:
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
        comm.broadcast(X, **arguments)


def test_broadcast_of_many_is_a_list_for_each_place() -> None:
    complex_ = torch.tensor([1 + 2j])
    parts = comm.broadcast_coalesced([X, complex_], [0, 1])
    assert [len(part) for part in parts] == [2, 2]
    assert all(torch.equal(part[0], X) and torch.equal(part[1], complex_) for part in parts)
    assert comm.broadcast_coalesced([], [0, 1]) == [[], []]


def test_reduce_add_sums_and_leaves_its_inputs() -> None:
    inputs = [X.clone(), 2 * X, 3 * X]
    assert torch.equal(comm.reduce_add(inputs, 0), 6 * X)
    assert torch.equal(inputs[0], X)
    assert comm.reduce_add([X]) is X


def test_reduce_add_refuses_another_shape() -> None:
    with pytest.raises(ValueError, match="input 1 has invalid size: got 2x5, but expected 5x2"):
        comm.reduce_add([X, X.view(2, 5)])


def test_reduce_add_wants_an_input_at_the_destination() -> None:
    with pytest.raises(RuntimeError, match="none is on meta"):
        comm.reduce_add([X, X], "meta")


def test_a_sum_is_sparse_if_all_that_is_added_is() -> None:
    sparse = X.to_sparse()
    both, mixed, dense = comm.reduce_add_coalesced([[sparse, sparse, X], [sparse, X, X]], "cpu")
    assert both.is_sparse
    assert [mixed.is_sparse, dense.is_sparse] == [False, False]
    assert all(torch.equal(s.to_dense() if s.is_sparse else s, 2 * X) for s in (both, mixed, dense))


def test_reduce_add_keeps_the_memory_format() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    (total,) = comm.reduce_add_coalesced([[image], [image]])
    assert total.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("places", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter_cuts_as_chunk_does(places: int, dim: int) -> None:
    pieces = comm.scatter(X, range(places), dim=dim)
    assert all(map(torch.equal, pieces, X.chunk(places, dim)))
    assert len(pieces) == len(X.chunk(places, dim))


def test_scatter_into_pieces_of_given_sizes() -> None:
    assert [piece.shape[0] for piece in comm.scatter(X, [0, 1], [4, 1])] == [4, 1]
    with pytest.raises(RuntimeError, match="same length, but got 2 devices and 3 chunk_sizes"):
        comm.scatter(X, [0, 1], [1, 1, 3])


def test_scatter_into_given_tensors() -> None:
    out = [torch.empty(3, 2), torch.empty(2, 2)]
    comm.scatter(X, out=out)
    assert torch.equal(torch.cat(out), X)
    with pytest.raises(RuntimeError, match="'devices' must not be specified when 'out'"):
        comm.scatter(X, [0, 1], out=out)
    with pytest.raises(RuntimeError, match="'chunk_sizes' must not be specified when 'out'"):
        comm.scatter(X, chunk_sizes=[3, 2], out=out)


@pytest.mark.parametrize("dim", [0, 1])
def test_gather_is_the_inverse_of_scatter(dim: int) -> None:
    assert torch.equal(comm.gather(comm.scatter(X, [0, 1], dim=dim), dim, "cpu"), X)


def test_gather_into_a_given_tensor() -> None:
    out = torch.empty(5, 2)
    assert comm.gather([X[:3], X[3:]], out=out) is out
    assert torch.equal(out, X)
    with pytest.raises(RuntimeError, match="'destination' must not be specified"):
        comm.gather([X], destination=0, out=out)
    with pytest.raises(RuntimeError, match=r"'out' has shape \(5, 2\)"):
        comm.gather([X, X], out=out)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: comm.broadcast(X, out=[X.clone(), X[:1]]), "output tensor at index 1"),
        (lambda: comm.scatter(X, []), "at least one device to scatter to"),
        (lambda: comm.scatter(X, out=[]), "at least one output tensor to scatter to"),
        (lambda: comm.scatter(X, out=[X[None]]), "Output tensor at index 0 has incorrect shape"),
        (lambda: comm.scatter(X, out=[X, X[:1]]), "Total size for output tensors along"),
        (lambda: comm.gather([]), "at least one tensor to gather from"),
        (lambda: comm.gather([X, X[None]]), "the same number of dimensions"),
        (lambda: comm.gather([X, X[:, :1]]), "Input tensor at index 1 has invalid shape"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_original(call, message) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()
