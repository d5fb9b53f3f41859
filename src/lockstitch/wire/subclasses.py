"""Tensors of other types than torch's plain ones: which of them keep their gradient on the way.

A subclass that merely adds methods and attributes to a tensor crosses as the plain tensor that it
is, which may take part in a stitch, with its class and its attributes. One that represents its
values in a way of its own (`__torch_dispatch__`, nested tensors) or has pickling of its own crosses
by that pickling. What this sends is not what autograd knows of, so no gradient would come back:
where one is wanted, such a tensor is refused.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.errors import SerializationError
from lockstitch.torch_internals.tensors import make_subclass, set_state, state_of, without_overrides

if TYPE_CHECKING:
    from lockstitch.wire.encodings import PickleSession

_TORCHS_PICKLING: Final = (torch.Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__)


def is_plain_at_heart(tensor: torch.Tensor) -> bool:
    """Returns whether memory and attributes are all that there is to this instance of a
    subclass."""
    cls = type(tensor)
    return (
        is_kept_in_memory(cls)
        and cls.__reduce_ex__ in _TORCHS_PICKLING
        and cls not in copyreg.dispatch_table
    )


def is_kept_in_memory(cls: type[torch.Tensor]) -> bool:
    """Returns whether instances of this class have their values where plain tensors have theirs."""
    return bool(cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__)


def reduce_subclass(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The plain tensor that an instance of a subclass is, on the same graph, and its attributes."""
    with without_overrides(), torch.inference_mode(False):
        plain = tensor.as_subclass(torch.Tensor)
        return plain, state_of(tensor)


def rebuild_subclass(cls: type[torch.Tensor], plain: torch.Tensor, state: Any) -> torch.Tensor:
    """Returns what was reduced, on the graph of `plain`, or a leaf if that is one."""
    if not issubclass(cls, torch.Tensor):
        raise SerializationError(f"{cls.__qualname__} is no class of tensors")
    # The modes of a thread that sends or receives are none of the tensor's.
    with without_overrides(), torch.inference_mode(False):
        made: torch.Tensor
        if plain.requires_grad and plain.is_leaf:
            made = make_subclass(cls, plain.detach(), True)
        else:  # it may be a view of what others view, too
            made = plain.as_subclass(cls)
    if cls.__setstate__ is not torch.Tensor.__setstate__:
        made.__setstate__(state)  # type: ignore[no-untyped-call]
    else:
        set_state(made, state)
    return made


def check_wants_no_gradient(tensor: torch.Tensor, session: PickleSession) -> None:
    """Raises `SerializationError` where a gradient is wanted for a tensor that crosses by pickling
    of its own."""
    if session.records is None or id(tensor) in session.leaf_ids or not session.records():
        return
    with without_overrides():
        wants_gradient = tensor.requires_grad
    if wants_gradient:
        cls = type(tensor)
        is_torchs = cls in (torch.Tensor, torch.nn.Parameter)
        kind = "nested tensor" if is_torchs else f"{cls.__module__}.{cls.__qualname__}"
        raise _refusal(
            f"a {kind} that requires grad cannot cross in an autograd context, for no gradient "
            "would come back to it. Send the plain tensors that it is made of, or send it detached"
        )


def _refusal(reason: str) -> SerializationError:
    error = SerializationError(reason)
    error.reason = reason
    return error
