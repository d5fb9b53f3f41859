"""A replica within the caller's process, for slots that are threads.

A copy of the module tree whose parameters are real ones, on the caller's memory: an optimizer's
step is seen at once, and autograd notices one between forward and backward, because a detached
alias shares the version of its tensor. Buffers are copies. Attributes go by reference, except that
lists, tables, methods, closures and plain objects which refer to parts of the tree are copied and
refer to the replica's parts. What still escapes, `untracked_leaves.py` finds.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lockstitch.nn.parallel.replicate import finish_copy, shallow_copy
from lockstitch.nn.slots.attributes import refer
from lockstitch.torch_internals.modules import TABLES, buffers_of, children_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def replicate_here(
    module: nn.Module, device: torch.device | None = None, *, shares_leaves: bool = False
) -> nn.Module:
    """A replica of `module`; on `device`, where that is another than a tensor's, its parameters
    are copies (see `refresh`). `shares_leaves`: parameters, and buffers that require gradients, are
    the module's own. Raises `RuntimeError` for scripted modules."""
    modules = list(module.modules())
    copy_of: dict[int, Any] = {}
    for each in modules:
        if isinstance(each, torch.jit.ScriptModule):
            raise RuntimeError(f"cannot replicate a module that was scripted: {type(each)}")
        copy_of[id(each)] = shallow_copy(each)
    for parameter in module.parameters():
        copy_of[id(parameter)] = parameter if shares_leaves else _alias(parameter, device)
    for buffer in module.buffers():
        is_shared = shares_leaves and buffer.requires_grad
        copy_of[id(buffer)] = buffer if is_shared else _copy(buffer, device)
    for each in modules:
        _fill(each, copy_of[id(each)], copy_of)
    for each in modules:
        finish_copy(copy_of[id(each)])
    replica: nn.Module = copy_of[id(module)]
    return replica


def _alias(parameter: nn.Parameter, device: torch.device | None) -> nn.Parameter:
    data = parameter.detach()
    if device is not None and data.device != device:
        data = data.to(device)
    return nn.Parameter(data, requires_grad=parameter.requires_grad)


def _copy(buffer: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    data = buffer.detach()
    if buffer.requires_grad and (device is None or data.device == device):
        return data.requires_grad_()
    copy = data.to(device) if device is not None and data.device != device else data.clone()
    return copy.requires_grad_(buffer.requires_grad)


def _fill(module: nn.Module, copy: nn.Module, copy_of: dict[int, Any]) -> None:
    children, buffers, parameters = children_of(copy), buffers_of(copy), parameters_of(copy)
    for name, child in children_of(module).items():
        children[name] = None if child is None else copy_of[id(child)]
    for name, buffer in buffers_of(module).items():
        buffers[name] = None if buffer is None else copy_of[id(buffer)]
    for name, parameter in parameters_of(module).items():
        parameters[name] = None if parameter is None else copy_of[id(parameter)]
        if parameter is not None:
            # Some classes (recurrent ones) keep their weights a second time when they are set.
            setattr(copy, name, copy_of[id(parameter)])
    for name, value in module.__dict__.items():
        if name not in TABLES:  # these are filled by other means, below
            copy.__dict__[name] = refer(value, copy_of)


def matching(
    module: nn.Module, replica: nn.Module, leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The replica's parameters and buffers that stand for these of the module."""
    old = itertools.chain(module.parameters(), module.buffers())
    new = itertools.chain(replica.parameters(), replica.buffers())
    copy_of = {id(each): copy for each, copy in zip(old, new, strict=True)}
    return [copy_of[id(leaf)] for leaf in leaves]
