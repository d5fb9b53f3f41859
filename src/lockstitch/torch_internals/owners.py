"""How many hold a tensor, or look at its memory: what is private to torch of that.

Where this torch cannot tell, nobody is ever the only owner: then memory is copied instead of taken
over.
"""

from __future__ import annotations

import sys
from itertools import count
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING

import torch

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.probing import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MANY = 1 << 30


def _counts_views(use_count: Callable[[int], int]) -> bool:
    tensor = torch.zeros(2)
    storage = tensor.untyped_storage()
    lone = use_count(_address_of(storage))
    view = tensor.view(1, 2)
    shared = use_count(_address_of(storage))
    del view
    return shared == lone + 1 and use_count(_address_of(storage)) == lone


def _counts_holders(use_count: Callable[[torch.Tensor], int]) -> bool:
    """The views of a tensor hold it, be it dropped by Python or not."""
    base = torch.zeros(2)
    alone = use_count(base)
    views = [base.view(1, 2), base.view(2, 1)]
    return use_count(base) == alone + len(views)


def _tells_views(is_view: Callable[[torch.Tensor], bool]) -> bool:
    tensor = torch.zeros(2)
    return is_view(tensor.view(1, 2)) is True and is_view(tensor) is False


def _finds_the_base(base_of: Callable[[torch.Tensor], torch.Tensor | None]) -> bool:
    tensor = torch.zeros(2)
    return base_of(tensor.view(1, 2)) is tensor and base_of(tensor) is None


def _finds_the_address(address_of: Callable[[torch.UntypedStorage], int]) -> bool:
    tensor, other = torch.zeros(2), torch.zeros(2)
    own = address_of(tensor.untyped_storage())
    same = address_of(tensor.view(1, 2).untyped_storage())
    is_number = type(own) is int
    return is_number and own == same != address_of(other.untyped_storage())


def _never_the_same() -> Callable[[object], int]:
    numbers = count(_MANY)
    return lambda _thing: next(numbers)


_base = Names("telling views from other tensors", is_base=True, within=plain_modes)
is_view: Callable[[torch.Tensor], bool] = _base.take(
    "torch.Tensor._is_view",
    "tell whether a tensor is a view of another that autograd knows of",
    _tells_views,
)
_base_of: Callable[[torch.Tensor], torch.Tensor | None] = _base.take(
    "Tensor._base",
    "be the tensor of which another is a view",
    _finds_the_base,
    reader=attrgetter("_base"),
)
_address_of: Callable[[torch.UntypedStorage], int] = _base.take(
    "UntypedStorage._cdata",
    "be the same for all objects of Python that stand for one storage",
    _finds_the_address,
    reader=attrgetter("_cdata"),
)
_counts = Names("taking memory over that nobody else looks at", within=plain_modes)
_use_count: Callable[[int], int] = _counts.take(
    "torch._C._storage_Use_Count",
    "count the tensors that look at a storage",
    _counts_views,
    otherwise=_never_the_same(),
)
_holders_of: Callable[[torch.Tensor], int] = _counts.take(
    "Tensor._use_count",
    "count those that hold a tensor, its views among them",
    _counts_holders,
    reader=methodcaller("_use_count"),
    otherwise=_never_the_same(),
)
PRIVATES = (*_base.finish(), *_counts.finish())


def is_sole_owner(holder: list[torch.Tensor | None], index: int) -> bool:
    """Returns whether `holder` alone holds `holder[index]`: no hook, user or other tensor shares
    it."""
    if sys.getrefcount(holder[index]) != _REFERENCES_OF_ONE:
        return False
    gradient = holder[index]
    assert gradient is not None
    if gradient.layout is not torch.strided:
        # Sparse tensors hand out their indices and values as aliases; torch's own rule, too,
        # counts only the owners of the whole.
        return True
    if is_view(gradient):
        return _owners_of_view(gradient) == _OWNERS_OF_LONE_VIEW
    return storage_users(gradient) == _USERS_OF_ONE


def storage_users(tensor: torch.Tensor) -> int:
    """Returns how many look at the memory of a tensor, the asking one included."""
    return _use_count(_address_of(tensor.untyped_storage()))


def users_of(storages: Iterable[torch.UntypedStorage]) -> list[int]:
    """The same of each of these storages."""
    return [_use_count(_address_of(each)) for each in storages]


def _owners_of_view(view: torch.Tensor) -> tuple[int, int, int]:
    """A view shares its storage with its base at least: who else holds the one or the other?"""
    base = _base_of(view)
    assert base is not None
    return storage_users(view), sys.getrefcount(base), _holders_of(base)


# What the counters say of a tensor that a list alone holds, on this Python and this torch.
with plain_modes():
    _lone = torch.zeros(1)
    _holder: list[torch.Tensor | None] = [_lone]
    del _lone
    _REFERENCES_OF_ONE = sys.getrefcount(_holder[0])
    _USERS_OF_ONE = storage_users(_holder[0])  # type: ignore[arg-type]
    _holder[0] = torch.zeros(1).view(1, 1)
    _OWNERS_OF_LONE_VIEW = _owners_of_view(_holder[0])  # type: ignore[arg-type]
    del _holder
