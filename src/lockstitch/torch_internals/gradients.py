"""What is private to torch of gradients: their norms, their order, and their scale."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.probing import Cost, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DTYPES = (torch.float64, torch.float32, torch.float64)


def _takes_each_norm(norms_of: Callable[[list[torch.Tensor], float], Any]) -> bool:
    norms = norms_of([torch.tensor([3.0, 4.0]), torch.tensor([2.0])], 2.0)
    return [float(norm) for norm in norms] == [5.0, 2.0]


def _groups_by_dtype(group: Callable[..., dict[Any, Any]]) -> bool:
    groups = group([[torch.empty(0, dtype=dtype) for dtype in _DTYPES]], with_indices=True)
    return sorted(indices for _, indices in groups.values()) == [[0, 2], [1]]


def _in_order_of_appearance(
    lists: list[list[torch.Tensor]],
    with_indices: bool,  # noqa: ARG001 - torch's signature
) -> dict[Any, Any]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, tensor in enumerate(lists[0]):
        groups[tensor.dtype].append(index)
    return {dtype: (None, indices) for dtype, indices in groups.items()}


def _unscales(unscale: Callable[[list[torch.Tensor], torch.Tensor, torch.Tensor], None]) -> bool:
    gradient, found, inverse = torch.tensor([2.0, 4.0]), torch.zeros(()), torch.tensor(0.5)
    unscale([gradient], found, inverse)
    is_scaled = gradient.tolist() == [1.0, 2.0] and not found
    unscale([torch.tensor([torch.inf])], found, inverse)
    return is_scaled and bool(found)


class _GradScaler(torch.amp.GradScaler):
    """Torch's, which asks `unscale` to do it, where that takes the optimizer."""

    def unscale(
        self, optimizer: torch.optim.Optimizer, inverse_scale: torch.Tensor, allow_fp16: bool
    ) -> Any:
        """Unscales the gradients of an optimizer; returns whether any was not finite, and None
        where there are none. `NotImplemented`: torch does it."""
        del optimizer, inverse_scale, allow_fp16
        return NotImplemented

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        found = self.unscale(optimizer, inv_scale, allow_fp16)
        if found is NotImplemented:
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        return {} if found is None else {found_inf.device: found_inf.fill_(float(found))}


def _asks_to_unscale(scaler_class: type[_GradScaler]) -> bool:
    class Asked(scaler_class):  # type: ignore[misc, valid-type]
        def unscale(self, optimizer: Any, inverse_scale: torch.Tensor, allow_fp16: bool) -> bool:
            asked.append((optimizer, float(inverse_scale), allow_fp16))
            return True

    asked: list[Any] = []
    scaler = Asked("cpu", init_scale=4.0)
    scaler.scale(torch.ones(1))
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scaler.step(optimizer)
    scaler.update()
    return asked == [(optimizer, 0.25, False)] and scaler.get_scale() == 2.0


_norms = Names("clipping of gradients on many workers", within=plain_modes)
norms_of: Callable[[list[torch.Tensor], float], Sequence[torch.Tensor]] = _norms.take(
    "torch._foreach_norm", "take the norm of each tensor of a list", _takes_each_norm
)
_group: Callable[..., dict[Any, Any]] = _norms.take(
    "torch.utils._foreach_utils._group_tensors_by_device_and_dtype",
    "group tensors by their dtypes, in the order in which torch adds up their norms",
    _groups_by_dtype,
    otherwise=_in_order_of_appearance,
)
_scaling = Names("GradScaler over many workers", within=plain_modes)
unscale: Callable[[list[torch.Tensor], torch.Tensor, torch.Tensor], None] = _scaling.take(
    "torch._amp_foreach_non_finite_check_and_unscale_",
    "multiply tensors by a factor, and tell whether any had a number that is not finite",
    _unscales,
)
ScalerWithoutGradients: Any = _scaling.take(
    "torch.amp.GradScaler._unscale_grads_",
    "be what a scaler calls to unscale the gradients of an optimizer",
    _asks_to_unscale,
    reader=_GradScaler,
    cost=Cost.THOROUGH,
)
PRIVATES = (*_norms.finish(), *_scaling.finish())


def order_of_norms(dtypes: Sequence[torch.dtype]) -> list[int]:
    """In which order torch adds up the norms of gradients that have these dtypes."""
    groups = _group([[torch.empty(0, dtype=dtype) for dtype in dtypes]], with_indices=True)
    return [index for _, indices in groups.values() for index in indices]
