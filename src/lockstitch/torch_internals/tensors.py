"""What is private to torch of tensors: versions, sparse parts, subclasses, many at once."""

from __future__ import annotations

import warnings
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.probing import Names, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager


def _counts_writes(version_of: Callable[[torch.Tensor], int]) -> bool:
    tensor = torch.zeros(2)
    before = version_of(tensor)
    tensor.add_(1)
    after = version_of(tensor)
    tensor.data.add_(1)
    return before < after == version_of(tensor) == version_of(tensor.view(1, 2))


def _copies_each(copy_many: Callable[[list[torch.Tensor], list[torch.Tensor]], object]) -> bool:
    outs = [torch.zeros(2), torch.zeros(3, dtype=torch.float64)]
    copy_many(outs, [torch.ones(2), torch.full((3,), 2.0)])
    return [each.tolist() for each in outs] == [[1.0, 1.0], [2.0, 2.0, 2.0]]


def _one_by_one(
    change: Callable[[torch.Tensor, torch.Tensor], object],
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object]:
    """Has each tensor of a list changed by one of another."""

    def run(outs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        for out, source in zip(outs, sources, strict=True):
            change(out, source)

    return run


def _adds_to_each(add_many: Callable[[list[torch.Tensor], list[torch.Tensor]], object]) -> bool:
    sums = [torch.ones(2), torch.zeros(3, dtype=torch.float64)]
    add_many(sums, [torch.ones(2), torch.full((3,), 2.0)])
    return [each.tolist() for each in sums] == [[2.0, 2.0], [2.0, 2.0, 2.0]]


def _cuts_into_views(cut: Callable[..., Sequence[torch.Tensor]]) -> bool:
    flat = torch.arange(6.0)
    shapes = [torch.empty(2, 2, device="meta"), torch.empty(2, device="meta")]
    square, row = cut(flat, shapes)
    flat.add_(1)
    return square.tolist() == [[1.0, 2.0], [3.0, 4.0]] and row.tolist() == [5.0, 6.0]


def _swaps(swap: Callable[[torch.Tensor, torch.Tensor], object]) -> bool:
    old, new = torch.zeros(2), torch.ones(3)
    alias = old.view(1, 2)
    swap(old, new)
    return (old.tolist(), alias.tolist()) == ([1.0, 1.0, 1.0], [[0.0, 0.0]])


_versions = Names("slots, and reductions in place", within=plain_modes)
version_of: Callable[[torch.Tensor], int] = _versions.take(
    "Tensor._version",
    "count how often a tensor was written to, except by `data`",
    _counts_writes,
    reader=attrgetter("_version"),
)
UNKNOWN = -1
"""The version of a tensor of inference mode: nobody counts its changes."""


def versions_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Of each of many, in two thirds of the time."""
    return [each._version for each in tensors]


def known_versions_of(tensors: Iterable[torch.Tensor | None]) -> list[int]:
    """Likewise, also of what has none, which is `UNKNOWN`."""
    return [UNKNOWN if it is None or it.is_inference() else it._version for it in tensors]


_copies = Names("quick copies of many tensors", within=plain_modes)
copy_many: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object] = _copies.take(
    "torch._foreach_copy_",
    "copy each tensor of a list into one of another",
    _copies_each,
    otherwise=_one_by_one(torch.Tensor.copy_),
)
_sums = Names("quick sums of many tensors", within=plain_modes)
add_many: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object] = _sums.take(
    "torch._foreach_add_",
    "add to each tensor of a list one of another",
    _adds_to_each,
    otherwise=_one_by_one(torch.Tensor.add_),
)
_slots = Names("DataParallel on slots", within=plain_modes)
unflatten: Callable[[torch.Tensor, Sequence[torch.Tensor]], Sequence[torch.Tensor]] = _slots.take(
    "torch._C._nn.unflatten_dense_tensors",
    "cut a vector into views of these shapes",
    _cuts_into_views,
)
swap_tensors: Callable[[torch.Tensor, torch.Tensor], None] = _slots.take(
    "torch._C._swap_tensor_impl",
    "exchange what two objects of Python stand for",
    _swaps,
)


def _sparse(index: int = 1) -> torch.Tensor:
    indices, values = torch.tensor([[0, index]]), torch.tensor([1.0, 2.0])
    with warnings.catch_warnings():  # torch 2.11 and 2.12 remark on the first sparse tensor made
        warnings.simplefilter("ignore")
        return torch.sparse_coo_tensor(indices, values, (3,), check_invariants=False)


def _are_indices(indices_of: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    return indices_of(_sparse()).tolist() == [[0, 1]]


def _are_values(values_of: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    tensor = _sparse()
    return values_of(tensor).tolist() == [1.0, 2.0] and not tensor.is_coalesced()


def _refuses(check: Callable[..., object], good: tuple[Any, ...], bad: tuple[Any, ...]) -> bool:
    check(*good)
    try:
        check(*bad)
    except RuntimeError:
        return True
    return False


def _refuses_coo(check: Callable[..., object]) -> bool:
    values = torch.ones(2)
    good, bad = torch.tensor([[0, 1]]), torch.tensor([[0, 9]])
    return _refuses(check, (good, values, (3,), False), (bad, values, (3,), False))


def _refuses_compressed(check: Callable[..., object]) -> bool:
    rows, values, layout = torch.tensor([0, 1]), torch.ones(1), torch.sparse_csr
    good, bad = torch.tensor([2]), torch.tensor([9])
    return _refuses(
        check, (rows, good, values, (1, 3), layout), (rows, bad, values, (1, 3), layout)
    )


_of_sparse = Names("sparse tensors", within=plain_modes)
indices_of: Callable[[torch.Tensor], torch.Tensor] = _of_sparse.take(
    "Tensor._indices",
    "return the indices of a sparse tensor as they are",
    _are_indices,
    reader=methodcaller("_indices"),
)
values_of: Callable[[torch.Tensor], torch.Tensor] = _of_sparse.take(
    "Tensor._values",
    "return the values of a sparse tensor as they are",
    _are_values,
    reader=methodcaller("_values"),
)
check_sparse: Callable[..., None] = _of_sparse.take(
    "torch._validate_sparse_coo_tensor_args",
    "refuse indices that point outside a sparse tensor",
    _refuses_coo,
)
check_compressed: Callable[..., None] = _of_sparse.take(
    "torch._validate_sparse_compressed_tensor_args",
    "refuse indices that point outside a compressed sparse tensor",
    _refuses_compressed,
)


def _negates(view: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    tensor = torch.ones(2)
    negative = view(tensor)
    tensor.add_(1)
    return negative.is_neg() and negative.tolist() == [-2.0, -2.0]


_negative = Names("receiving tensors with a negative bit", within=plain_modes)
negative_view: Callable[[torch.Tensor], torch.Tensor] = _negative.take(
    "torch._neg_view",
    "return the same memory, to be read as its negative",
    _negates,
)


class _Labelled(torch.Tensor):
    """For the probes."""

    label = ""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return "seen" if function is torch.Tensor.neg else result


def _is_unseen(disable: Callable[[], AbstractContextManager[object]]) -> bool:
    tensor: Any = torch.ones(2).as_subclass(_Labelled)
    if tensor.neg() != "seen":
        return False
    with disable():
        return bool(tensor.neg()[0] == -1)


def _has_state(state_of: Callable[[torch.Tensor], Any]) -> bool:
    tensor = torch.ones(2).as_subclass(_Labelled)
    tensor.label = "a"
    fresh = torch.ones(2).as_subclass(_Labelled)
    resolve("torch._utils._set_obj_state")(fresh, state_of(tensor))
    return fresh.label == "a"


def _takes_state(set_state: Callable[[torch.Tensor, Any], object]) -> bool:
    tensor = torch.ones(2).as_subclass(_Labelled)
    set_state(tensor, {"label": "b"})
    return tensor.label == "b"


def _makes_leaf(make: Callable[..., torch.Tensor]) -> bool:
    plain = torch.ones(2)
    made = make(_Labelled, plain, True)
    is_leaf = made.is_leaf and made.requires_grad and made.data_ptr() == plain.data_ptr()
    return type(made) is _Labelled and is_leaf


_subclasses = Names("sending subclasses of tensors", within=plain_modes)
without_overrides: Callable[[], AbstractContextManager[None]] = _subclasses.take(
    "torch._C.DisableTorchFunctionSubclass",
    "call torch's own methods of subclasses that override them",
    _is_unseen,
)
state_of: Callable[[torch.Tensor], Any] = _subclasses.take(
    "torch._utils._get_obj_state",
    "return the attributes of an object, as _set_obj_state takes them",
    _has_state,
)
set_state: Callable[[torch.Tensor, Any], None] = _subclasses.take(
    "torch._utils._set_obj_state",
    "give an object these attributes",
    _takes_state,
)
make_subclass: Callable[[type[torch.Tensor], torch.Tensor, bool], torch.Tensor] = _subclasses.take(
    "torch.Tensor._make_subclass",
    "make a leaf of a subclass on the memory of a tensor",
    _makes_leaf,
)

PRIVATES = (
    *_versions.finish(),
    *_copies.finish(),
    *_sums.finish(),
    *_slots.finish(),
    *_of_sparse.finish(),
    *_negative.finish(),
    *_subclasses.finish(),
)
