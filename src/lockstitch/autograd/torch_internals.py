"""The few private things of torch that distributed autograd stands on, all in this file.

Each is probed when the module is imported: a torch that lacks one gives one clear error at once
instead of a wrong gradient later. The unit tests of this file pin how they behave.

    run_backward          the local engine's own entry: 9 µs where `torch.autograd.grad` takes 40
    AccumulateGrad        the type of the node at which a leaf's gradient arrives
    _sequence_nr, _set_…  the order in which the engine picks among nodes that are ready
    _use_count, _storage_Use_Count    how many hold a tensor, or share its buffer
    aten::lift            the identity that puts a node on the very tensor it is given
    Node.metadata         what may be noted in a node
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from lockstitch.modes import in_plain_modes, plain_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.autograd.graph import GradientEdge

Node: TypeAlias = Any
"""A node of torch's graph. Its C++ classes are not importable by a type checker."""

_NEEDED_OF_NODES = (
    "_sequence_nr",
    "_set_sequence_nr",
    "metadata",
    "next_functions",
    "register_prehook",
)


@in_plain_modes
def _probe() -> None:
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    with torch.enable_grad():  # this may be imported in any mode
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
    if not _lifts():
        missing.append("an aten::lift that returns what it is given")
    if missing:
        raise ImportError(
            f"lockstitch.autograd cannot work with torch {torch.__version__}: it lacks "
            f"{', '.join(missing)}. Install a torch that Lockstitch is tested with (2.13)."
        )


def _lifts() -> bool:
    tensor = torch.zeros(1, requires_grad=True).clone()
    before: Node = tensor.grad_fn
    lifted: Any = torch.ops.aten.lift(tensor)
    node: Node = tensor.grad_fn
    return lifted is tensor and node.next_functions[0][0] is before


_probe()

_NOT_TRANSPOSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_some = torch.zeros(1, requires_grad=True)
OWN_NODES: tuple[Any, ...] = (
    type(torch.ops.aten.lift(_some.clone()).grad_fn),
    type(_some.clone().transpose_(0, 0).grad_fn),
)
"""What `give_own_node` puts on a tensor."""
del _some
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


def give_own_node(tensor: torch.Tensor) -> None:
    """Puts a node upon that of `tensor` which has only this output: so the engine runs it, and with
    it the hooks of the tensor, only where a gradient comes for this very tensor."""
    if not tensor.is_complex():
        torch.ops.aten.lift(tensor)
    elif tensor.layout not in _NOT_TRANSPOSED:
        tensor.transpose_(0, 0)  # changes nothing, and is differentiable for complex numbers


def has_node_hooks(node: Node) -> bool:
    """Whether hooks were registered on `node` itself from Python."""
    before, after = _hook_tables(node)
    return bool(before or after)


def node_prehooks(node: Node) -> list[Callable[..., Any]]:
    """Those of `node.register_prehook`: each takes a tuple of gradients, and may return others."""
    return list(_hook_tables(node)[0].values())


def node_hooks(node: Node) -> list[Callable[..., Any]]:
    """Those of `node.register_hook`."""
    return list(_hook_tables(node)[1].values())


def _hook_tables(node: Node) -> tuple[dict[int, Any], dict[int, Any]]:
    """The dictionaries in which a node keeps its hooks, noted in the node when first asked for.

    Torch has no reader for them, but a new hook joins the dictionary of those already there, which
    stays with the node.
    """
    tables = node.metadata.get(_TABLES)
    if tables is None:
        handles = node.register_prehook(_no_prehook), node.register_hook(_no_hook)
        tables = node.metadata[_TABLES] = tuple([handle.hooks_dict_ref for handle in handles])
        for handle in handles:
            handle.remove()
    return tables[0](), tables[1]()


_TABLES = "lockstitch: references to the tables of hooks"


def _no_prehook(_gradients: Any) -> None:
    """Never called: it is registered and removed at once."""


def _no_hook(_grad_inputs: Any, _grad_outputs: Any) -> None:
    """Likewise."""


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
with plain_modes():
    _lone = torch.zeros(1)
    _holder: list[torch.Tensor | None] = [_lone]
    del _lone
    _REFERENCES_OF_ONE = sys.getrefcount(_holder[0])
    _USERS_OF_ONE = _storage_users(_holder[0])  # type: ignore[arg-type]
    _holder[0] = torch.zeros(1).view(1, 1)
    _OWNERS_OF_LONE_VIEW = _owners_of_view(_holder[0])  # type: ignore[arg-type]
    del _holder
