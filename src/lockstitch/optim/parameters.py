"""References to the parameters of a module on another worker, as optimizers take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lockstitch.rpc import RRef, rpc_sync
from lockstitch.runtime.worker import current_worker
from lockstitch.trust.registry import needed

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn


class RemoteHandle(Protocol):
    """What stands for a module elsewhere; a `RemoteModule` does."""

    def get_module_rref(self) -> RRef[nn.Module]:
        """The reference to the module."""
        ...


def parameters_of(module: RRef[Any] | RemoteHandle) -> list[RRef[torch.Tensor]]:
    """References to the parameters of a module, in the order of `module.parameters()`, each once.

    `module`: a reference to a `torch.nn.Module`, or to anything with such a method, or a
    `RemoteModule`. They are made on the owner, in one call; each keeps its parameter alive there.
    Raises `TypeError` for anything else, `RuntimeError` where the owner is gone.

        >>> optimizer = DistributedOptimizer(torch.optim.Adam, parameters_of(model), lr=1e-3)
    """
    reference = reference_of(module)
    return rpc_sync(reference.owner(), _references, (reference,))


def named_parameters_of(
    module: RRef[Any] | RemoteHandle,
) -> list[tuple[str, RRef[torch.Tensor]]]:
    """As `parameters_of`, each with its name, in the order of `module.named_parameters()`. A
    `DistributedOptimizer` takes the pairs, too, and has the names in its groups and states."""
    reference = reference_of(module)
    return rpc_sync(reference.owner(), _named_references, (reference,))


def reference_of(module: Any) -> RRef[Any]:
    """The reference to a module elsewhere. Raises `TypeError` for what does not stand for one."""
    if isinstance(module, RRef):
        return module
    if not hasattr(module, "get_module_rref"):
        raise TypeError(
            "what is wanted is a reference to a module, or a RemoteModule, not a "
            f"{type(module).__name__}: for a module of this worker, say RRef(module)"
        )
    reference: RRef[Any] = module.get_module_rref()
    return reference


@needed
def _references(reference: RRef[Any]) -> list[RRef[torch.Tensor]]:
    return [RRef(each) for each in _called(reference, "parameters")]


@needed
def _named_references(reference: RRef[Any]) -> list[tuple[str, RRef[torch.Tensor]]]:
    return [(name, RRef(each)) for name, each in _called(reference, "named_parameters")]


def _called(reference: RRef[Any], method: str) -> Iterable[Any]:
    """What a method of the value returns, which peers may call."""
    module = reference.local_value()
    allowed = current_worker().agent.allowed
    if allowed is not None:
        allowed.check_method(module, method)
    if not hasattr(module, method):
        raise TypeError(f"a {type(module).__name__} has no {method}(): a module is wanted")
    found: Iterable[Any] = getattr(module, method)()
    return found
