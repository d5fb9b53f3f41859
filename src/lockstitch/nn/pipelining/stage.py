"""One stage on its worker: forward and backward passes of micro-batches, each on its own graph.

    arrived ─► receive ═ module ═ edge ─► leaves            forward keeps the edges only
    gradients  ◄─ receive ═══════ edge ◄─ gradients          backward runs from them, and frees

What is kept between the two passes are the graph (`graphs`) and what it has saved.

A stage that *recomputes* keeps the inputs instead, and runs the forward pass once more before the
backward pass: with the same random numbers, and with the module as it was (`recomputing`). The
first time it makes a graph too, which is dropped: a module may compute something else without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from lockstitch.autograd.context import DistAutogradContext, set_current_context
from lockstitch.nn.pipelining.graphs import Gradients, Graph, InputGradients, Values
from lockstitch.nn.pipelining.known_leaves import KnownLeaves
from lockstitch.nn.pipelining.randomness import drawing_from
from lockstitch.nn.pipelining.recomputing import Recomputing
from lockstitch.nn.pipelining.skips import SkipReference, Stash, enter, leave
from lockstitch.nn.slots.lifting import fill, lift
from lockstitch.torch_internals.owners import is_sole_owner, is_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from lockstitch.modes import Modes
    from lockstitch.nn.pipelining.recomputing import Former


@dataclass
class StageOptions:
    """What is the same for all micro-batches of a step."""

    stage: int
    context: DistAutogradContext | None
    """Where gradients go; None: there is no backward pass."""
    modes: Modes
    recomputes: bool = False
    loss_fn: Callable[..., Any] | None = None
    is_last: bool = False


@dataclass
class MicroBatch:
    """What a stage needs for a forward pass, and may need again."""

    number: int
    values: Values
    kwargs: dict[str, Any]
    seed: int
    target: Any = None
    has_target: bool = False
    skips: dict[SkipReference, torch.Tensor] = field(default_factory=dict)
    """What was fetched from earlier stages."""
    former: Former | None = None
    """How the module was before, where it will run again."""


class Stage:
    """A stage for one step; `fetch` gets the value of a skip from where it is."""

    def __init__(
        self,
        module: nn.Module,
        options: StageOptions,
        fetch: Callable[[SkipReference], torch.Tensor],
    ) -> None:
        self._module = module
        self._options = options
        self._fetch = fetch
        self._recomputing = Recomputing(module)
        self._modes = replace(options.modes, is_grad_enabled=options.context is not None)
        self._recomputes = options.recomputes and options.context is not None
        self._device = _device_of(module)
        self._graphs: dict[int, Graph] = {}
        self._kept: dict[int, MicroBatch] = {}
        self._known = KnownLeaves()
        self.stash = Stash()
        self.most_live = 0

    # ------------------------------------------------------------ forward

    def forward(self, micro_batch: MicroBatch) -> Values:
        """Runs one through the module, and through the loss in the last stage. Returns what the
        next stage gets: in the last one the loss, or the outputs where there is no loss."""
        options, number = self._options, micro_batch.number
        if options.context is None:
            return self._run(micro_batch, None, is_first_time=True)
        graph = Graph(self._known)
        if self._recomputes:
            self._kept[number] = micro_batch
        else:
            self._graphs[number] = graph
        values = self._run(micro_batch, graph, is_first_time=True)
        self.most_live = max(self.most_live, len(self._graphs) + len(self._kept))
        return values

    def _run(self, micro_batch: MicroBatch, graph: Graph | None, *, is_first_time: bool) -> Values:
        before = set_current_context(self._options.context)
        try:
            with drawing_from(micro_batch.seed, self._device), self._modes.active():
                return self._run_module(micro_batch, graph, is_first_time)
        finally:
            set_current_context(before)

    def _run_module(
        self, micro_batch: MicroBatch, graph: Graph | None, is_first_time: bool
    ) -> Values:
        is_repeated = self._recomputes and is_first_time
        value = fill(micro_batch.values.skeleton, self._entered(micro_batch, graph, is_repeated))
        value = enter(value, self._binding(micro_batch, graph, is_repeated))
        args = value if type(value) is tuple else (value,)
        kwargs = self._given(micro_batch.kwargs, is_repeated)
        if not is_first_time:
            assert micro_batch.former is not None
            output = self._recomputing.run_again(micro_batch.former, (args, kwargs))
        elif is_repeated:
            output, micro_batch.former = self._recomputing.run((args, kwargs))
        else:
            output = self._module(*args, **kwargs)
        if self._options.is_last and self._options.context is not None:
            output = self._loss_of(output, micro_batch, is_repeated)
            if graph is not None and not output.requires_grad:
                raise RuntimeError(
                    "the loss has no history: no parameter of any stage wants a gradient, or what "
                    "leads to the loss was done under no_grad"
                )
        return self._leaving(output, micro_batch, graph, is_first_time)

    def _entered(
        self, micro_batch: MicroBatch, graph: Graph | None, is_repeated: bool
    ) -> list[torch.Tensor]:
        """The inputs on the stage's device, with a graph that begins here."""
        values = micro_batch.values
        here = [self._protected(tensor, is_repeated) for tensor in values.tensors]
        if graph is None:
            return here
        return [graph.enter(*each) for each in zip(here, values.wanted, strict=True)]

    def _protected(self, tensor: torch.Tensor, is_repeated: bool) -> torch.Tensor:
        """An input for the module, which may write to it: where it is needed again, a copy. Parts
        of one memory have a common version otherwise, although they are apart."""
        moved = tensor if self._device is None else tensor.to(self._device)
        if is_repeated and moved is tensor:
            return moved.clone()
        return moved.data if is_view(moved) else moved

    def _given(self, thing: Any, is_repeated: bool) -> Any:
        """What stands beside the inputs, likewise."""
        skeleton, tensors = lift(thing)
        return fill(skeleton, [self._protected(tensor, is_repeated) for tensor in tensors])

    def _binding(
        self, micro_batch: MicroBatch, graph: Graph | None, is_repeated: bool
    ) -> Callable[[SkipReference], SkipReference]:
        """Makes references as the module sees them: `to_here` fetches, and notes that it did."""
        here: dict[SkipReference, torch.Tensor] = {}

        def take(skip: SkipReference) -> torch.Tensor:
            if skip not in here:
                if skip not in micro_batch.skips:
                    micro_batch.skips[skip] = self._fetch(skip)
                tensor = self._protected(micro_batch.skips[skip], is_repeated)
                if graph is not None and skip.wants_gradient:
                    tensor = graph.enter_fetched(skip, tensor)
                here[skip] = tensor
            return here[skip]

        return lambda skip: skip.bound(take)

    def _loss_of(self, output: Any, micro_batch: MicroBatch, is_repeated: bool) -> torch.Tensor:
        loss_fn = self._options.loss_fn
        if loss_fn is None:
            loss = output
        elif micro_batch.has_target:
            loss = loss_fn(output, self._given(micro_batch.target, is_repeated))
        else:
            loss = loss_fn(output)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ValueError(
                f"the loss of a micro-batch is a tensor of one element, not {what}: give a loss_fn "
                "that returns one"
            )
        return loss

    def _leaving(
        self, output: Any, micro_batch: MicroBatch, graph: Graph | None, is_first_time: bool
    ) -> Values:
        stashed: list[torch.Tensor] = []

        def stash(tensor: torch.Tensor) -> SkipReference:
            place, number = len(stashed), micro_batch.number
            stashed.append(tensor)
            if is_first_time:
                self.stash.put(number, place, self._unchanging(tensor))
            return SkipReference(self._options.stage, number, place, tensor.requires_grad)

        skeleton, tensors = lift(output if self._options.is_last else leave(output, stash))
        wanted = [False] * len(tensors)
        if graph is not None:
            fetched = [skip for skip in micro_batch.skips if skip.wants_gradient]
            wanted = graph.leave(tensors, stashed, fetched)
        return Values(skeleton, _apart([tensor.detach() for tensor in tensors]), wanted)

    def _unchanging(self, tensor: torch.Tensor) -> torch.Tensor:
        """What later stages may fetch at any time: the next micro-batch may change a buffer."""
        detached = tensor.detach()
        if tensor.requires_grad or tensor.layout is not torch.strided:
            return detached
        memory = tensor.untyped_storage().data_ptr()
        buffers = [each for each in self._module.buffers() if each.layout is torch.strided]
        is_buffer = any(each.untyped_storage().data_ptr() == memory for each in buffers)
        return detached.clone() if is_buffer else detached

    # ------------------------------------------------------------ backward

    def backward(self, number: int, given: Gradients) -> InputGradients:
        """Goes back through a micro-batch's graph, and forgets it."""
        graph = self._graph(number)
        del self._graphs[number]
        return graph.run_backward(self._context, given)

    def backward_for_inputs(self, number: int, given: Gradients) -> InputGradients:
        """The part of `backward` that earlier stages wait for; `backward_for_weights` follows."""
        return self._graph(number).run_backward(self._context, given, splits=True)

    def backward_for_weights(self, number: int) -> None:
        """The rest of a backward pass: gradients of the parameters."""
        self._graphs.pop(number).run_rest(self._context)

    @property
    def _context(self) -> DistAutogradContext:
        assert self._options.context is not None
        return self._options.context

    def _graph(self, number: int) -> Graph:
        if number in self._kept:
            graph = self._graphs[number] = Graph(self._known)
            self._run(self._kept.pop(number), graph, is_first_time=False)
        return self._graphs[number]


def _apart(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without common memory. A write to one that the next stage makes would change the
    others without its graph knowing."""
    seen = set[int]()
    for place, tensor in enumerate(tensors):
        if tensor.layout is torch.strided:
            memory = tensor.untyped_storage().data_ptr()
            if memory in seen:
                tensors[place] = tensor.clone()
            seen.add(memory)
    return tensors


def owned(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Results, copied where somebody else has them too: a module that gives out memory of its own
    may write to it for the next micro-batch."""
    holder = cast("list[torch.Tensor | None]", tensors)
    for place in range(len(tensors)):
        if not is_sole_owner(holder, place):
            tensors[place] = tensors[place].clone()
    return tensors


def _device_of(module: nn.Module) -> torch.device | None:
    """Where the module's tensors are; None: it has none, and takes its inputs as they come."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return None
