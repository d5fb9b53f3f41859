"""The few private things of torch that distributed autograd stands on, all in this file.

Each is probed when the module is imported: a torch that lacks one gives one clear error at once
instead of a wrong gradient later. The unit tests of this file pin how they behave.

    run_backward          the local engine's own entry: 9 µs where `torch.autograd.grad` takes 40
    AccumulateGrad        the type of the node at which a leaf's gradient arrives
    _sequence_nr, _set_…  the order in which the engine picks among nodes that are ready
    _use_count, _storage_Use_Count    how many hold a tensor, or share its buffer
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.autograd.graph import GradientEdge

Node: TypeAlias = Any
"""A node of torch's graph. Its C++ classes are not importable by a type checker."""

_NEEDED_OF_NODES = ("_sequence_nr", "_set_sequence_nr", "next_functions", "register_prehook")


def _probe() -> None:
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    node = torch.zeros(1, requires_grad=True).clone().grad_fn
    missing = [f"Node.{name}" for name in _NEEDED_OF_NODES if not hasattr(node, name)]
    if not hasattr(engine, "run_backward"):
        missing.append("the engine's run_backward")
    if not hasattr(torch._C._functions, "AccumulateGrad"):
        missing.append("torch._C._functions.AccumulateGrad")
    if not hasattr(torch.Tensor, "_use_count"):
        missing.append("Tensor._use_count")
    if not hasattr(torch._C, "_storage_Use_Count"):
        missing.append("torch._C._storage_Use_Count")
    if missing:
        raise ImportError(
            f"lockstitch.autograd cannot work with torch {torch.__version__}: it lacks "
            f"{', '.join(missing)}. Install a torch that Lockstitch is tested with (2.13)."
        )


_probe()

AccumulateGrad: type = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_run_backward: Callable[..., tuple[torch.Tensor | None, ...]] = (
    torch.autograd.Variable._execution_engine.run_backward
)


def run_engine(
    edges: Sequence[GradientEdge],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[GradientEdge],
    retain_graph: bool,
) -> list[torch.Tensor | None]:
    """Runs torch's engine from `edges`; returns what arrives at `inputs`, None where nothing does.

    Only nodes on the way to an input run, and `.grad` stays untouched. `inputs` must not be empty:
    for torch that would mean "accumulate into every leaf's .grad".
    """
    # Positions: roots, their gradients, keep the graph, create a graph, inputs, allow unreachable.
    return list(
        _run_backward(
            tuple(edges),
            tuple(gradients),
            retain_graph,
            False,
            tuple(inputs),
            True,
            accumulate_grad=False,
        )
    )


def node_hooks(node: Node) -> list[Callable[..., Any]]:
    """The hooks that were registered on `node` itself from Python (`node.register_hook`).

    Torch has no reader for them, but a new hook joins the dictionary of those already there.
    """
    handle = node.register_hook(_no_hook)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return list(hooks.values())


def _no_hook(_grad_inputs: Any, _grad_outputs: Any) -> None:
    """Never called: it is registered and removed at once."""


def is_sole_owner(holder: list[torch.Tensor | None], index: int) -> bool:
    """Whether `holder` alone holds `holder[index]`: no hook, user or other tensor shares it."""
    if sys.getrefcount(holder[index]) != _REFERENCES_OF_ONE:
        return False
    gradient = holder[index]
    assert gradient is not None
    if gradient.layout is not torch.strided:
        # Sparse tensors hand out their indices and values as aliases; torch's own rule, too,
        # counts only the owners of the whole.
        return True
    if gradient._is_view():
        return _owners_of_view(gradient) == _OWNERS_OF_LONE_VIEW
    return _storage_users(gradient) == _USERS_OF_ONE


def _storage_users(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _owners_of_view(view: torch.Tensor) -> tuple[int, int, int]:
    """A view shares its storage with its base at least: who else holds the one or the other?"""
    base = view._base
    assert base is not None
    return _storage_users(view), sys.getrefcount(base), base._use_count()  # type: ignore[attr-defined]


# What the counters say of a tensor that a list alone holds, on this Python and this torch.
_lone = torch.zeros(1)
_holder: list[torch.Tensor | None] = [_lone]
del _lone
_REFERENCES_OF_ONE = sys.getrefcount(_holder[0])
_USERS_OF_ONE = _storage_users(_holder[0])  # type: ignore[arg-type]
_holder[0] = torch.zeros(1).view(1, 1)
_OWNERS_OF_LONE_VIEW = _owners_of_view(_holder[0])  # type: ignore[arg-type]
del _holder
