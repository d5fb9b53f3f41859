"""What is private to torch of nodes, hooks and the engine of the backward pass.

    run_engine          the local engine's own entry: 9 µs where `torch.autograd.grad` takes 40
    AccumulateGrad      the type of the node at which a leaf's gradient arrives
    sequence_number     the order in which the engine picks among nodes that are ready
    aten::lift          the identity that puts a node on the very tensor it is given
    Node.metadata       what may be noted in a node

Without these a gradient could be wrong; so distributed autograd is not imported where one is
missing. The other names have features of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd.graph import get_gradient_edge

from lockstitch.modes import plain_modes
from lockstitch.torch_internals.probing import Cost, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.autograd.graph import GradientEdge

Node: TypeAlias = Any
"""A node of torch's graph. Its C++ classes are not importable by a type checker."""


def _leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def _runs(run_backward: Callable[..., Any]) -> bool:
    """Whether it captures what arrives at a leaf, and leaves the leaf alone."""
    leaf = _leaf()
    edges = (get_gradient_edge(leaf * 3),)
    inputs = (get_gradient_edge(leaf), get_gradient_edge(_leaf()))
    captured, none = run_backward(
        edges, (torch.ones(2),), False, False, inputs, True, accumulate_grad=False
    )
    return captured.tolist() == [3.0, 3.0] and none is None and leaf.grad is None


def _calls_back(queue_callback: Callable[[Callable[[], None]], object]) -> bool:
    """Whether it does so after all nodes have run."""
    order: list[str] = []
    leaf = _leaf()
    root = leaf * 1

    def note(_gradient: torch.Tensor) -> None:
        queue_callback(lambda: order.append("end"))
        order.append("hook")

    root.register_hook(note)  # type: ignore[no-untyped-call]
    leaf.register_hook(lambda _: order.append("leaf"))  # type: ignore[no-untyped-call]
    root.sum().backward()  # type: ignore[no-untyped-call]
    return order == ["hook", "leaf", "end"]


def _is_at_leaves(kind: type) -> bool:
    leaf = _leaf()
    node: Any = get_gradient_edge(leaf).node
    return node.variable is leaf and type(node) is kind


def _puts_a_node(lift: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    tensor = _leaf() * 1
    before: Node = tensor.grad_fn
    lifted: Any = lift(tensor)
    node: Node = tensor.grad_fn
    return lifted is tensor and node.next_functions[0][0] is before


def _finds_hooks(tables: Callable[[Node], Any]) -> bool:
    tensor = _leaf() * 1
    node: Node = tensor.grad_fn
    before, after = tables(node)
    if before or after:
        return False
    node.register_prehook(_no_prehook)
    node.register_hook(_no_hook)
    again = tables(tensor.grad_fn)
    return [list(each.values()) for each in again] == [[_no_prehook], [_no_hook]]


def _hook_tables(node: Node) -> tuple[dict[int, Any], dict[int, Any]]:
    """The dictionaries in which a node keeps its hooks, noted in the node when first asked for.

    Torch has no reader for them, but a new hook joins the dictionary of those already there, which
    stays with the node. (The note may not: a collection of garbage that finds the node's object of
    Python clears references to these, also where another thread has come back to the node.)
    """
    noted = node.metadata.get(_TABLES)
    before, after = (None, None) if noted is None else (noted[0](), noted[1]())
    if before is None or after is None:
        handles = node.register_prehook(_no_prehook), node.register_hook(_no_hook)
        noted = node.metadata[_TABLES] = tuple([handle.hooks_dict_ref for handle in handles])
        before, after = noted[0](), noted[1]()
        for handle in handles:
            handle.remove()
    return before, after


_TABLES = "lockstitch: references to the tables of hooks"


def _no_prehook(_gradients: Any) -> None:
    """Never called: it is registered and removed at once."""


def _no_hook(_grad_inputs: Any, _grad_outputs: Any) -> None:
    """Likewise."""


_core = Names("backward passes over several workers", is_base=True, within=plain_modes)
_run_backward: Callable[..., tuple[torch.Tensor | None, ...]] = _core.take(
    "torch.autograd.Variable._execution_engine.run_backward",
    "return the gradients of the leaves that it is asked for, and leave their .grad alone",
    _runs,
    cost=Cost.THOROUGH,
)
AccumulateGrad: type = _core.take(
    "torch._C._functions.AccumulateGrad",
    "be the type of the node at which a leaf's gradient arrives",
    _is_at_leaves,
)
_lift: Callable[[torch.Tensor], torch.Tensor] = _core.take(
    "torch.ops.aten.lift",
    "return the tensor that it is given, with a node of its own",
    _puts_a_node,
)
_tables_of: Callable[[Node], tuple[dict[int, Any], dict[int, Any]]] = _core.take(
    "RemovableHandle.hooks_dict_ref",
    "lead to the hooks of a node, which keeps a reference to them in its metadata",
    _finds_hooks,
    reader=_hook_tables,
)


def _notices_a_hook(hooks_of: Callable[[torch.Tensor], Any]) -> bool:
    leaf = _leaf()
    if hooks_of(leaf):
        return False
    leaf.register_hook(_no_prehook)  # type: ignore[no-untyped-call]
    return len(hooks_of(leaf)) == 1


tensor_hooks: Callable[[torch.Tensor], Any] = _core.take(
    "Tensor._backward_hooks",
    "be None, or hold what was registered by Tensor.register_hook",
    _notices_a_hook,
    reader=attrgetter("_backward_hooks"),
)


class _Marked(torch.autograd.Function):
    """For its probe."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _is_type_of_node(node_type: Callable[[type], type]) -> bool:
    node = _Marked.apply(_leaf()).grad_fn  # type: ignore[no-untyped-call]
    return type(node) is node_type(_Marked)


node_type_of: Callable[[type[torch.autograd.Function]], type] = _core.take(
    "torch.autograd.Function._backward_cls",
    "be the type of the nodes that a function puts on the graph",
    _is_type_of_node,
    reader=attrgetter("_backward_cls"),
)


def _grows(number_of: Callable[[Node], int]) -> bool:
    leaf = _leaf()
    first, second = leaf * 1, leaf * 1
    return number_of(first.grad_fn) < number_of(second.grad_fn)


def _set_number(node: Node, number: int) -> None:
    node._set_sequence_nr(number)


def _sets_number(set_number: Callable[[Node, int], object]) -> bool:
    """Whether it does, and the engine runs nodes that are ready by their numbers."""
    leaf, order = _leaf(), []
    tensors = [leaf * 1 for _ in range(3)]
    for number, tensor in zip((5, 9, 1), tensors, strict=True):
        node: Node = tensor.grad_fn
        set_number(node, number)
        if sequence_number(node) != number:
            return False
        node.register_prehook(lambda _gradients, number=number: order.append(number))
    edges = [get_gradient_edge(tensor) for tensor in tensors]
    run_engine(edges, [torch.ones(2)] * 3, [get_gradient_edge(leaf)], False)
    return order == [9, 5, 1]


def _describes(metadata_of: Callable[[Node], Any]) -> bool:
    node: Node = _leaf().to(torch.float64).view(1, 2).grad_fn
    (form,) = metadata_of(node)
    device = torch.device("cpu")
    return (tuple(form.shape), form.dtype, form.device) == ((1, 2), torch.float64, device)


_order = Names("backward passes that wait for what they send themselves", within=plain_modes)
sequence_number: Callable[[Node], int] = _order.take(
    "Node._sequence_nr",
    "grow from node to node of a thread",
    _grows,
    reader=methodcaller("_sequence_nr"),
)
set_sequence_number: Callable[[Node, int], None] = _order.take(
    "Node._set_sequence_nr",
    "set the number by which the engine picks, greatest first, among nodes that are ready",
    _sets_number,
    reader=_set_number,
    cost=Cost.THOROUGH,
)
input_metadata: Callable[[Node], Any] = _order.take(
    "Node._input_metadata",
    "describe the gradients that a node takes: shape, dtype and device of each",
    _describes,
    reader=attrgetter("_input_metadata"),
)

_callbacks = Names("reductions and slots that end with the backward pass", within=plain_modes)
queue_callback: Callable[[Callable[[], object]], None] = _callbacks.take(
    "torch.autograd.Variable._execution_engine.queue_callback",
    "call what it is given when the backward pass that is running has gone through all nodes",
    _calls_back,
    cost=Cost.THOROUGH,
)


def _knows_whether_the_graph_is_kept(keeps_graph: Callable[[], bool]) -> bool:
    seen = []
    for expected in (True, False):
        root = _leaf() * 1
        root.register_hook(lambda _: seen.append(keeps_graph()))  # type: ignore[no-untyped-call]
        root.sum().backward(retain_graph=expected)  # type: ignore[no-untyped-call]
    return seen == [True, False]


def _forget_hooks(leaf: torch.Tensor) -> None:
    leaf._backward_hooks = None
    if getattr(leaf, "_post_accumulate_grad_hooks", None) is not None:
        leaf._post_accumulate_grad_hooks = OrderedDict()  # None would leave them where they are


def _forgets(forget: Callable[[torch.Tensor], object]) -> bool:
    leaf, called = _leaf(), []
    leaf.register_hook(lambda _: called.append(1))  # type: ignore[no-untyped-call]
    leaf.register_post_accumulate_grad_hook(called.append)  # type: ignore[no-untyped-call]
    forget(leaf)
    leaf.sum().backward()  # type: ignore[no-untyped-call]
    return not called and leaf.grad is not None


_slots = Names("DataParallel on slots", within=plain_modes)
keeps_graph: Callable[[], bool] = _slots.take(
    "torch._C._autograd._get_current_graph_task_keep_graph",
    "say within a backward pass whether it retains the graph",
    _knows_whether_the_graph_is_kept,
    cost=Cost.THOROUGH,
)
forget_hooks: Callable[[torch.Tensor], None] = _slots.take(
    "Tensor._post_accumulate_grad_hooks",
    "be what makes a leaf forget its hooks when it is emptied, with _backward_hooks",
    _forgets,
    reader=_forget_hooks,
    cost=Cost.THOROUGH,
)


def _tells_profilers(is_profiling: Callable[[], bool]) -> bool:
    before = is_profiling()
    with torch.autograd.profiler.profile():
        return is_profiling() is True and before is False


_profiling = Names("the ranges of calls in the record of a profiler", within=plain_modes)
is_profiling: Callable[[], bool] = _profiling.take(
    "torch._C._autograd._profiler_enabled",
    "tell whether a profiler is on",
    _tells_profilers,
    otherwise=lambda: False,
    cost=Cost.SLOW,
)


def hook_tables(node: Node) -> tuple[dict[int, Any], dict[int, Any]]:
    """The hooks of `node` itself that were registered from Python, those before it and those after,
    now and as long as the node lives."""
    return _tables_of(node)


def _run_past_leaves(
    edges: Sequence[GradientEdge],
    gradients: Sequence[torch.Tensor],
    leaves: Sequence[GradientEdge],
    hooks: Sequence[Callable[[tuple[torch.Tensor | None, ...]], Any]],
    anchor: GradientEdge,
) -> bool:
    """Runs torch's engine from `edges` to `leaves` and `anchor`; before the node of each leaf comes
    its hook, which leaves it nothing to do. False: cannot be done."""
    tables = [hook_tables(leaf.node)[0] for leaf in leaves]
    key = -id(tables)  # those of torch are positive
    try:
        for table, hook in zip(tables, hooks, strict=True):
            table[key] = hook
        _run_backward(
            tuple(edges),
            tuple(gradients),
            False,
            False,
            (*leaves, anchor),
            True,
            accumulate_grad=True,
        )
    finally:
        for table in tables:
            table.pop(key, None)
    return True


def _passes_leaves(run: Callable[..., bool]) -> bool:
    """Whether hooks see the gradients, leaves have none afterwards, and the hooks are gone."""
    leaf, seen = _leaf(), []
    edges = [get_gradient_edge(each) for each in (leaf, _leaf(), _leaf())]
    root = leaf * 3 + edges[1].node.variable  # type: ignore[attr-defined]

    def take(gradients: tuple[torch.Tensor]) -> tuple[None]:
        seen.append(gradients[0].tolist())
        return (None,)

    run([get_gradient_edge(root)], [torch.ones(2)], edges[:2], [take, take], edges[2])
    grads = [edge.node.variable.grad for edge in edges]  # type: ignore[attr-defined]
    if sorted(seen) != [[1.0, 1.0], [3.0, 3.0]] or grads != [None] * 3:
        return False
    (leaf * 2).sum().backward()  # type: ignore[no-untyped-call]
    return leaf.grad is not None and len(seen) == 2


_adding = Names("large gradients added where they arise", within=plain_modes)
run_past_leaves: Callable[..., bool] = _adding.take(
    "Node.register_prehook",
    "let a hook take what was to be added to the .grad of a leaf",
    _passes_leaves,
    reader=_run_past_leaves,
    otherwise=lambda *_: False,
    cost=Cost.THOROUGH,
)

PRIVATES = (
    *_core.finish(),
    *_order.finish(),
    *_callbacks.finish(),
    *_slots.finish(),
    *_profiling.finish(),
    *_adding.finish(),
)

_NOT_TRANSPOSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
with plain_modes(), torch.enable_grad():  # this may be imported in any mode
    OWN_NODES: tuple[Any, ...] = (
        type(_lift(_leaf() * 1).grad_fn),
        type((_leaf() * 1).transpose_(0, 0).grad_fn),
    )
    """What `give_own_node` puts on a tensor."""


def run_engine(
    edges: Sequence[GradientEdge],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[GradientEdge],
    retain_graph: bool,
    create_graph: bool = False,
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
            create_graph,
            tuple(inputs),
            True,
            accumulate_grad=False,
        )
    )


def run_from_tensors(
    roots: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    retain_graph: bool,
) -> Sequence[torch.Tensor | None]:
    """As torch.autograd.grad, which first checks what may be right by construction. Without
    `inputs`: as torch.autograd.backward, which gathers in the `.grad` of each leaf."""
    return _run_backward(
        tuple(roots),
        tuple(gradients),
        retain_graph,
        False,  # create_graph
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=not inputs,
    )


def give_own_node(tensor: torch.Tensor) -> None:
    """Puts a node upon that of `tensor` which has only this output: so the engine runs it, and with
    it the hooks of the tensor, only where a gradient comes for this very tensor."""
    if not tensor.is_complex():
        _lift(tensor)
    elif tensor.layout not in _NOT_TRANSPOSED:
        tensor.transpose_(0, 0)  # changes nothing, and is differentiable for complex numbers


def has_node_hooks(node: Node) -> bool:
    """Whether hooks were registered on `node` itself from Python."""
    before, after = _tables_of(node)
    return bool(before or after)


def node_prehooks(node: Node) -> list[Callable[..., Any]]:
    """Those of `node.register_prehook`: each takes a tuple of gradients, and may return others."""
    return list(_tables_of(node)[0].values())


def node_hooks(node: Node) -> list[Callable[..., Any]]:
    """Those of `node.register_hook`."""
    return list(_tables_of(node)[1].values())
