"""A module as pieces that follow one another: the children of a `Sequential`, or the operations of
its forward method, as `torch.fx` finds them.

Pieces know how to try themselves on what the pieces before have given, and how to make a stage of
some that follow one another. A submodule that cannot be traced is one operation: it stays whole.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import fx, nn

from lockstitch.torch_internals.modules import children_of, has_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Try = Callable[[Callable[..., Any], Any, list[torch.Tensor]], Any]
"""`try_one(run, args, parameters)`: tries a piece, and returns what it gives."""


class Pieces(Protocol):
    """A module taken apart."""

    def run(self, example: tuple[Any, ...], try_one: Try) -> None:
        """Tries all pieces, one after the other."""
        ...

    def cuts(self) -> Sequence[range]:
        """The pieces between which no cut should be made, in groups; each piece is in one."""
        ...

    def stages(self, cuts: Sequence[range]) -> list[nn.Module]:
        """A module of the pieces of each range; their states together are that of the whole."""
        ...


def take_apart(module: nn.Module) -> Pieces:
    """The pieces of a module. Raises `ValueError` for one that cannot be traced, naming the
    operation."""
    if type(module) is nn.Sequential and not has_hooks(module):
        return SequentialPieces(module)
    return GraphPieces(module)


# ---------------------------------------------------------------- Sequential


class _Handing(nn.Sequential):
    """A part of a `Sequential` that returns a tuple, which the next part takes as one argument."""

    def forward(self, input: Any) -> tuple[Any, ...]:
        output: Any = super().forward(input)  # type: ignore[no-untyped-call]
        return (output,)


class SequentialPieces:
    """The children of a `Sequential`, and instead of those that are plain ones, theirs."""

    def __init__(self, module: nn.Sequential) -> None:
        self._pieces = list(_children(module, ()))
        self._gives_tuple: list[bool] = []

    def run(self, example: tuple[Any, ...], try_one: Try) -> None:
        """See `Pieces`. Raises `ValueError` for another number of arguments than one."""
        if len(example) != 1:
            raise ValueError(f"a Sequential takes one argument, and the example has {len(example)}")
        value = example[0]
        for _, piece in self._pieces:
            value = try_one(piece, (value,), list(piece.parameters()))
            self._gives_tuple.append(type(value) is tuple)

    def cuts(self) -> Sequence[range]:
        """See `Pieces`."""
        return [range(at, at + 1) for at in range(len(self._pieces))]

    def stages(self, cuts: Sequence[range]) -> list[nn.Module]:
        """See `Pieces`."""
        made: list[nn.Module] = []
        for cut in cuts:
            hands_tuple = cut.stop < len(self._pieces) and self._gives_tuple[cut.stop - 1]
            kind = _Handing if hands_tuple else nn.Sequential
            made.append(_nested([self._pieces[at] for at in cut], kind))
        return made


def _children(
    module: nn.Sequential, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], nn.Module]]:
    for name, child in children_of(module).items():
        path = (*above, name)
        if type(child) is nn.Sequential and len(child) and not has_hooks(child):
            yield from _children(child, path)
        else:
            yield path, child


def _nested(
    pieces: Sequence[tuple[tuple[str, ...], nn.Module]], kind: type[nn.Sequential]
) -> nn.Sequential:
    """The pieces under the names that they had."""
    root = kind()
    for path, piece in pieces:
        place: nn.Module = root
        for name in path[:-1]:
            if name not in children_of(place):
                place.add_module(name, nn.Sequential())
            place = children_of(place)[name]
        place.add_module(path[-1], piece)
    return root


# ---------------------------------------------------------------- any other module


class GraphPieces:
    """The operations of a module."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._graph = _trace(module)
        nodes = list(self._graph.nodes)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        self._nodes = [n for n in nodes if n.op not in ("placeholder", "get_attr", "output")]
        (self._output,) = (node for node in nodes if node.op == "output")
        self._place = {node: at for at, node in enumerate(self._nodes)}
        self._check()

    def _check(self) -> None:
        for node in self._inputs:
            if str(node.target).startswith("*"):
                raise _refusal(self._module, f"its forward method takes {node.target}")
        for node in self._nodes:
            if node.op == "call_function" and _is_in_training(node):
                name = getattr(node.target, "__name__", node.target)
                raise _refusal(
                    self._module,
                    f"{name} gets `training` as a constant, which train() and eval() would not "
                    "change: take the module of that name from torch.nn",
                )

    # ------------------------------------------------------------ trying

    def run(self, example: tuple[Any, ...], try_one: Try) -> None:
        """See `Pieces`. Raises `TypeError` for arguments that the module does not take."""
        values = self._arguments(example)
        for node in self._nodes:
            parameters: list[torch.Tensor] = []
            if node.op == "call_module":
                parameters += self._child(node).parameters()
            parameters += [each for each in self._attributes(node) if each.requires_grad]
            lookup = functools.partial(self._value, values)
            args, kwargs = fx.map_arg((node.args, node.kwargs), lookup)
            run = functools.partial(self._run, node)
            values[node] = try_one(run, (args, kwargs), parameters)

    def _arguments(self, example: tuple[Any, ...]) -> dict[fx.Node, Any]:
        bound = inspect.signature(self._module.forward).bind(*example)
        bound.apply_defaults()
        return dict(zip(self._inputs, bound.arguments.values(), strict=True))

    def _value(self, values: dict[fx.Node, Any], node: fx.Node) -> Any:
        return self._attribute(node) if node.op == "get_attr" else values[node]

    def _run(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_module":
            return self._child(node)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        function: Any = node.target
        return function(*args, **kwargs)

    def _child(self, node: fx.Node) -> nn.Module:
        return self._module.get_submodule(str(node.target))

    def _attribute(self, node: fx.Node) -> Any:
        return functools.reduce(getattr, str(node.target).split("."), self._module)

    def _attributes(self, node: fx.Node) -> list[torch.Tensor]:
        found = [self._attribute(each) for each in node.all_input_nodes if each.op == "get_attr"]
        return [each for each in found if isinstance(each, torch.Tensor)]

    # ------------------------------------------------------------ cutting

    def cuts(self) -> Sequence[range]:
        """See `Pieces`. A cut is made where as few values as possible go across: one, where that
        leaves as many groups as are wanted; that is for the caller to see."""
        ends = [at + 1 for at in range(len(self._nodes) - 1) if len(self._crossing(at + 1)) == 1]
        edges = [0, *ends, len(self._nodes)]
        return [range(begin, end) for begin, end in pairwise(edges)]

    def _crossing(self, at: int) -> list[fx.Node]:
        """The values that are there before the operation of that place and wanted from it on."""
        there = [*self._inputs, *self._nodes[:at]]
        return [node for node in there if any(self._place_of(user) >= at for user in node.users)]

    def _place_of(self, node: fx.Node) -> int:
        return len(self._nodes) if node is self._output else self._place[node]

    def stages(self, cuts: Sequence[range]) -> list[nn.Module]:
        """See `Pieces`. Between stages go tuples of the values that are still wanted."""
        return [self._stage(cut) for cut in cuts]

    def _stage(self, cut: range) -> nn.Module:
        graph, here = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self._inputs if cut.start == 0 else self._crossing(cut.start):
            here[node] = (
                graph.node_copy(node) if node.op == "placeholder" else graph.placeholder(node.name)
            )
            if cut.start and node.op == "placeholder":
                here[node].args = ()

        def find(node: fx.Node) -> fx.Node:
            if node.op == "get_attr" and node not in here:
                here[node] = graph.node_copy(node)
            return here[node]

        for at in cut:
            here[self._nodes[at]] = graph.node_copy(self._nodes[at], find)
        if cut.stop == len(self._nodes):
            graph.node_copy(self._output, find)
        else:
            graph.output(tuple(find(node) for node in self._crossing(cut.stop)))
        return fx.GraphModule(self._module, graph)


class _Tracer(fx.Tracer):
    """A tracer for which some submodules are operations, and that notes in which one it failed."""

    def __init__(self, whole: set[str]) -> None:
        super().__init__()
        self._whole = whole
        self.failed: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self._whole or super().is_leaf_module(
            m, module_qualified_name
        )

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or self.path_of_module(m)
            raise


def _trace(module: nn.Module) -> fx.Graph:
    whole: set[str] = set()
    while True:
        tracer = _Tracer(whole)
        try:
            return tracer.trace(module)
        except Exception as error:
            if tracer.failed is None or tracer.failed in whole:
                raise _refusal(module, _place_in(error)) from error
            whole.add(tracer.failed)


def _refusal(module: nn.Module, why: str) -> ValueError:
    return ValueError(
        f"a {type(module).__name__} cannot be cut into stages: {why}. Make it a Sequential, or "
        "give Pipeline the stages themselves"
    )


def _place_in(error: Exception) -> str:
    """The operation that cannot be traced: the last line that is not torch's."""
    torch_folder = str(Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith((torch_folder, __file__))]
    if not own:
        return str(error)
    at = own[-1]
    return f"at {at.filename}:{at.lineno}, in {at.name}, `{at.line}`: {error}"


class _Training(NamedTuple):
    """Where a function of torch takes whether the model is training."""

    position: int
    default: Any


@functools.cache
def _training_argument(function: Any) -> _Training | None:
    if getattr(function, "__module__", "") != "torch.nn.functional":
        return None
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if "training" not in parameters:
        return None
    return _Training(list(parameters).index("training"), parameters["training"].default)


def _is_in_training(node: fx.Node) -> bool:
    found = _training_argument(node.target)
    if found is None:
        return False
    if "training" in node.kwargs:
        return node.kwargs["training"] is True
    given = node.args[found.position] if len(node.args) > found.position else found.default
    return given is True
