"""Replicas of a module: one for each place, with parameters of its own there, from which gradients
come back to the module's.

A replica is a shallow copy, module by module. What is one parameter, buffer or submodule under two
names is one in each replica too. Other than in the original, a replica's parameters are listed by
its `parameters()` and are instances of `Parameter`, although they are no leaves of the graph. On a
single device parameters are views of the module's and take no memory; buffers are copied for all
replicas but the first, whose updates of buffers the module keeps.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import nn

from lockstitch.nn.parallel import comm
from lockstitch.nn.parallel._functions import Broadcast
from lockstitch.nn.parallel.places import Place, devices_of
from lockstitch.torch_internals.compiling import copy_compiled, initialize, is_compiled
from lockstitch.torch_internals.modules import (
    buffers_of,
    children_of,
    mark_as_parameter,
    parameters_of,
    set_former_parameters,
)
from lockstitch.torch_internals.modules import shallow_copy as plain_copy

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["replicate"]

M = TypeVar("M", bound=nn.Module)


def replicate(network: M, devices: Sequence[Place], detach: bool = False) -> list[M]:
    """A replica of `network` on each of `devices`. Gradients flow from the replicas' parameters to
    the network's unless `detach`; a parameter that no replica uses then gets zeros.

    Raises `RuntimeError` for lazy modules that have not seen an input, and for scripted ones.
    """
    places = devices_of(devices)
    if not places:
        return []
    modules = list(network.modules())
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            raise RuntimeError(f"cannot replicate a module that was scripted: {type(module)}")
    replicas = [[shallow_copy(module) for module in modules] for _ in places]
    tensors = _copies_of(network, places, detach)
    for copies, of_tensors in zip(replicas, tensors, strict=True):
        copy_of = dict(zip(modules, copies, strict=True))
        for module, copy in copy_of.items():
            children = children_of(copy)
            for name, child in children_of(module).items():
                children[name] = None if child is None else copy_of[child]
            _fill(module, copy, of_tensors)
        for copy in copies:
            finish_copy(copy)
        for parameter in copies[0].parameters():
            mark_as_parameter(parameter)  # for isinstance(…, Parameter)
    return [cast("M", copies[0]) for copies in replicas]


def shallow_copy(module: nn.Module) -> nn.Module:
    """A replica of `module` alone, which has no parameters yet, and refers to the same children."""
    if not is_compiled(module):
        return plain_copy(module)
    # What is set on it goes to the module within: torch's way would take the parameters from that.
    return copy_compiled(module)


def finish_copy(copy: nn.Module) -> None:
    """Is called when a replica has its children: one that is compiled calls its own from now on."""
    if is_compiled(copy):
        initialize(copy)


def _copies_of(
    network: nn.Module, places: Sequence[torch.device], detach: bool
) -> list[dict[torch.Tensor, torch.Tensor]]:
    """Returns for each place what stands there for each parameter and buffer."""
    parameters: list[torch.Tensor] = list(network.parameters())
    buffers = list(network.buffers())
    attached = [] if detach else [*parameters, *(b for b in buffers if b.requires_grad)]
    detached = [*parameters, *buffers] if detach else [b for b in buffers if not b.requires_grad]
    flat = Broadcast.apply(places, *attached)
    parts = [flat[i * len(attached) : (i + 1) * len(attached)] for i in range(len(places))]
    with torch.no_grad():
        others = comm.broadcast_coalesced([tensor.detach() for tensor in detached], places)
    return [
        dict(zip([*attached, *detached], [*part, *other], strict=True))
        for part, other in zip(parts, others, strict=True)
    ]


def _fill(module: nn.Module, copy: nn.Module, tensors: dict[torch.Tensor, torch.Tensor]) -> None:
    """Gives `copy` its parameters and buffers."""
    former: dict[str, torch.Tensor] = OrderedDict()
    set_former_parameters(copy, former)  # where torch's DDP looks
    own_parameters = parameters_of(copy)
    for name, parameter in parameters_of(module).items():
        if parameter is None:
            own_parameters[name] = None
            continue
        tensor = tensors[parameter]
        # First as an attribute, for classes that keep their weights a second time (recurrent ones).
        setattr(copy, name, tensor)
        copy.__dict__.pop(name, None)
        own_parameters[name] = tensor
        former[name] = tensor
    for name, buffer in buffers_of(module).items():
        if buffer is not None:
            setattr(copy, name, tensors[buffer])
