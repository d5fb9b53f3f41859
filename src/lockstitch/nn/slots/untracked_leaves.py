"""Tensors whose gradients would be lost in a slot.

A slot sends back the gradients of the module's parameters and of the arguments. A module may reach
others as well: parameters in a plain list, in an object that is no module, in a closure or a global
variable. The plain module would give them a `.grad`; in a slot it would stay there, unseen. So the
graph of a pass is searched for leaves that nobody will ask about.

That takes a microsecond for each node, so it is done where the graph has not been seen before. The
engine numbers the nodes that a thread makes: two passes whose outputs lie equally many nodes after
the beginning have done the same, as a rule. Where a module puts one leaf in another's place that
does not show; so the 1st, 2nd, 4th, 8th … pass is searched in any case.

A leaf that the pass itself has made and that nothing keeps is no loss.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.checkpoint import CheckpointFunction

from lockstitch.torch_internals.autograd import sequence_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_MOST_GRAPHS: Final = 1000
_CHECKPOINT: Final = f"{CheckpointFunction.__name__}Backward"


class UntrackedLeafSearch:
    """Looks for such leaves in the passes of one slot, where there may be any."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self._leaf = torch.zeros((), device="cpu", requires_grad=True)
        self._known: set[Any] = set()
        self._passes = 0
        self._start = 0
        self.is_reentrant = False
        """Whether a graph has been seen with a node that goes back through one of its own."""

    def begin_pass(self) -> None:
        """The module is about to be called, by this thread."""
        if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            self._start = self._next_number()
            return
        with torch.inference_mode(False), torch.enable_grad():
            self._start = self._next_number()

    def _next_number(self) -> int:
        node = self._leaf.view(()).grad_fn
        assert node is not None
        return sequence_number(node)

    def end_pass(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        is_training: bool,
    ) -> None:
        """It has returned `outputs`, which may depend on `inputs` and `leaves`. Raises
        `RuntimeError` if they depend on others."""
        nodes = [each.grad_fn for each in outputs if each.grad_fn is not None]
        distances = [sequence_number(node) - self._start for node in nodes]
        graph = is_training, len(inputs), tuple(distances)
        self._passes += 1
        if graph not in self._known or not self._passes & (self._passes - 1):
            if check_for_untracked_leaves(outputs, [*inputs, *leaves]):
                self.is_reentrant = True
            if len(self._known) >= _MOST_GRAPHS:
                self._known.clear()
            self._known.add(graph)


def check_for_untracked_leaves(
    outputs: Sequence[torch.Tensor], known: Sequence[torch.Tensor]
) -> bool:
    """Raises `RuntimeError` if the outputs depend on leaves that are not `known` and that somebody
    keeps. Returns whether a node goes back through a graph of its own, as a re-entrant checkpoint
    does."""
    expected = set(map(id, known))
    untracked, is_reentrant = [], False
    for node in _nodes(outputs):
        if not hasattr(node, "variable"):
            is_reentrant = is_reentrant or type(node).__name__ == _CHECKPOINT
        elif id(node.variable) not in expected:
            untracked.append(node)
    if not untracked:
        return is_reentrant
    of_nobody = _references(_accumulator_of_nobody())
    for accumulator in untracked:
        if _references(accumulator) > of_nobody:
            leaf = accumulator.variable
            raise RuntimeError(
                f"in a slot the module's output depends on a tensor of shape {tuple(leaf.shape)} "
                "that requires gradients but is neither among the module's parameters nor among "
                "its arguments: its gradient would be lost. Register it, or the module that it "
                "belongs to, as an attribute of the module (lists as nn.ModuleList or "
                "nn.ParameterList), or give it as an argument, Replicate(tensor)."
            )
    return is_reentrant


def _references(accumulator: Any) -> int:
    """How many there are to its leaf."""
    leaf = accumulator.variable
    return sys.getrefcount(leaf)


def _accumulator_of_nobody() -> Any:
    """One whose leaf is kept by the graph alone."""
    with torch.enable_grad():
        leaf = torch.zeros((), device="cpu", requires_grad=True)
        output = leaf + 0
    return output.grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _nodes(outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
    """Those of the graph; where gradients are added to leaves they have a `variable`."""
    nodes: list[Any] = [
        torch.autograd.graph.get_gradient_edge(each).node for each in outputs if each.requires_grad
    ]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
