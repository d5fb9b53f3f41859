"""Clipping gradients that lie on many workers, as `torch.nn.utils` clips those of one process.

    this worker                       ps1                  ps2
    norms                          ─→ norms of its own     norms of its own      in parallel
    one norm, of all of them
    scale, if it is above the limit ─→ scales its own       scales its own       in parallel

The norm of all is taken of the norms of each, in torch's order: so it is torch's number, to the
last bit.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import utils

from lockstitch.optim import owners
from lockstitch.optim.distributed import DistributedOptimizer
from lockstitch.optim.gradients import checked_contexts, gather_gradients
from lockstitch.optim.groups import by_owner, read_groups
from lockstitch.rpc import RRef
from lockstitch.torch_internals.gradients import norms_of, order_of_norms
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lockstitch.ids import WorkerInfo
    from lockstitch.optim.gradients import ContextIds
    from lockstitch.optim.local import LocalOptimizer

    Parameters = DistributedOptimizer | RRef[torch.Tensor] | Iterable[RRef[torch.Tensor]]
    Handle = RRef[LocalOptimizer] | list[RRef[torch.Tensor]]

_NOBODY = "no gradient was changed, and no owner has stepped"


class _Share(NamedTuple):
    """The parameters of one owner: how it finds them, and their numbers among all."""

    owner: WorkerInfo
    handle: Handle
    positions: list[int]


@needed
class NormsOfDtype(NamedTuple):
    """The norms of some gradients of one dtype."""

    dtype: torch.dtype
    numbers: list[int]
    """Which of the owner's parameters they are of."""
    norms: torch.Tensor
    """A norm for each, on the CPU."""


def clip_grad_norm_(
    parameters: Parameters,
    context_id: ContextIds,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scales the gradients of `parameters` in an autograd context, so that the norm of all of them
    together is at most `max_norm`; returns the norm that they had, a tensor of this worker without
    dimensions.

    `parameters`: a `DistributedOptimizer`, or references to parameters. `context_id`: one context,
    or several that count as one (as in `DistributedOptimizer.step`). `norm_type` may be infinite.
    `foreach` as in torch. Each owner is asked once for norms, and once more where there is
    something to clip.

    Raises what torch does: `RuntimeError` for a norm that is not finite, if `error_if_nonfinite`,
    and, where torch cannot take their norm (up to 2.14), `NotImplementedError` for sparse
    gradients. When an owner does not answer, its error says which gradients were changed; no owner
    has stepped.

    After `torch.nn.utils.clip_grad_norm_`.
    """
    shares, contexts = _shares(parameters), checked_contexts(context_id)
    total = _total_norm(shares, contexts, norm_type, error_if_nonfinite, foreach)
    if not float(max_norm) / (total + 1e-6) >= 1.0:  # else each factor would be 1
        _clip_with(shares, contexts, max_norm, total, foreach)
    return total


def get_total_norm(
    parameters: Parameters,
    context_id: ContextIds,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """The norm of all gradients of `parameters` in a context, and changes none; see
    `clip_grad_norm_`. After `torch.nn.utils.get_total_norm`."""
    shares, contexts = _shares(parameters), checked_contexts(context_id)
    return _total_norm(shares, contexts, norm_type, error_if_nonfinite, foreach)


def clip_grads_with_norm_(
    parameters: Parameters,
    context_id: ContextIds,
    max_norm: float,
    total_norm: torch.Tensor,
    foreach: bool | None = None,
) -> None:
    """Scales gradients as `clip_grad_norm_` does where the norm of all is known: of more parameters
    than these, say. After `torch.nn.utils.clip_grads_with_norm_`."""
    _clip_with(_shares(parameters), checked_contexts(context_id), max_norm, total_norm, foreach)


def clip_grad_value_(
    parameters: Parameters, context_id: ContextIds, clip_value: float, foreach: bool | None = None
) -> None:
    """Clips each number of the gradients to the range from `-clip_value` to `clip_value`, in one
    message to each owner; see `clip_grad_norm_`. After `torch.nn.utils.clip_grad_value_`."""
    shares, contexts = _shares(parameters), checked_contexts(context_id)
    outcomes = _ask(shares, _clip_values, contexts, float(clip_value), foreach)
    owners.values(outcomes, "clipped", "no owner has stepped")


def _shares(parameters: Parameters) -> list[_Share]:
    if isinstance(parameters, DistributedOptimizer):
        return [
            _Share(reference.owner(), reference, positions)
            for reference, positions in zip(
                parameters.remote_optimizers, parameters.positions, strict=True
            )
        ]
    references = [parameters] if isinstance(parameters, RRef) else parameters
    return [
        _Share(owner, part.given.references, part.positions)
        for owner, parts in by_owner(read_groups(references)).items()
        for part in parts
    ]


def _ask(
    shares: list[_Share], function: Callable[..., owners.T], *arguments: Any
) -> list[owners.Outcome[owners.T]]:
    return owners.ask_each((share.owner, function, (share.handle, *arguments)) for share in shares)


def _total_norm(
    shares: list[_Share],
    contexts: list[int],
    norm_type: float,
    error_if_nonfinite: bool,
    foreach: bool | None,
) -> torch.Tensor:
    norm_type = float(norm_type)
    told = owners.values(_ask(shares, _norms, contexts, norm_type, foreach), consequence=_NOBODY)
    total = join_norms(told, [share.positions for share in shares], norm_type)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


def join_norms(
    told: Sequence[Sequence[NormsOfDtype]], positions: Sequence[Sequence[int]], norm_type: float
) -> torch.Tensor:
    """The norm of all, of the norms that owners have told of their parameters, which have these
    numbers among all."""
    norms: dict[int, tuple[torch.dtype, torch.Tensor]] = {}
    for parts, places in zip(told, positions, strict=True):
        for part in parts:
            for number, norm in zip(part.numbers, part.norms.unbind(), strict=True):
                norms[places[number]] = part.dtype, norm
    if not norms:
        return torch.tensor(0.0)
    ordered = [norms[place] for place in sorted(norms)]
    in_torchs_order = order_of_norms([dtype for dtype, _ in ordered])
    every = torch.stack([ordered[index][1] for index in in_torchs_order])
    total: torch.Tensor = torch.linalg.vector_norm(every, norm_type)
    return total


def _clip_with(
    shares: list[_Share],
    contexts: list[int],
    max_norm: float,
    total_norm: torch.Tensor,
    foreach: bool | None,
) -> None:
    outcomes = _ask(shares, _scale, contexts, float(max_norm), total_norm, foreach)
    owners.values(outcomes, "clipped", "no owner has stepped")


# ---------------------------------------------------------------- on the owners


def own_gradients(handle: Handle, contexts: list[int]) -> list[torch.Tensor | None]:
    """The gradient of each parameter that an owner finds by a handle, in order."""
    if isinstance(handle, RRef):
        parameters = handle.local_value().parameters
    else:
        parameters = [reference.local_value() for reference in handle]
    gradients = gather_gradients(contexts, parameters)
    return [gradients.get(each) for each in parameters]


@needed
@torch.no_grad()
def _norms(
    handle: Handle, contexts: list[int], norm_type: float, foreach: bool | None
) -> list[NormsOfDtype]:
    kinds: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[torch.Tensor]]] = {}
    for number, gradient in enumerate(own_gradients(handle, contexts)):
        if gradient is not None:
            numbers, gradients = kinds.setdefault((gradient.device, gradient.dtype), ([], []))
            numbers.append(number)
            gradients.append(gradient)
    told = []
    for (_, dtype), (numbers, gradients) in kinds.items():
        if foreach is False:
            norms: Sequence[torch.Tensor] = [
                torch.linalg.vector_norm(each, norm_type) for each in gradients
            ]
        else:
            norms = norms_of(gradients, norm_type)
        told.append(NormsOfDtype(dtype, numbers, torch.stack([*norms]).cpu()))
    return told


@needed
def _scale(
    handle: Handle,
    contexts: list[int],
    max_norm: float,
    total_norm: torch.Tensor,
    foreach: bool | None,
) -> None:
    holders = _holders(handle, contexts)
    utils.clip_grads_with_norm_(holders, max_norm, total_norm, foreach)


@needed
def _clip_values(
    handle: Handle, contexts: list[int], clip_value: float, foreach: bool | None
) -> None:
    holders = _holders(handle, contexts)
    if holders:  # torch does not take none
        utils.clip_grad_value_(holders, clip_value, foreach)


def _holders(handle: Handle, contexts: list[int]) -> Any:
    """What has the gradients as torch's functions look for them."""
    gradients = own_gradients(handle, contexts)
    return [SimpleNamespace(grad=each) for each in gradients if each is not None]
