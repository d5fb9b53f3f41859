"""Short forward passes of a slot that the caller runs itself, on its own graph.

What takes less than handing over gains nothing from a slot, and a pass without one needs neither
requests nor nodes of ours: a replica with the caller's own parameters is called, and autograd does
the rest. For that the module has to be quiet. A replica that had to be told of something within the
last passes is not called in this way.

Parameters that nobody used get zeros as their gradients on slots. So each graph is searched for
them, which takes a microsecond for each of its nodes, and such a module has few.
"""

from __future__ import annotations

import contextvars
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from lockstitch.nn.slots import generators
from lockstitch.nn.slots.failures import describe
from lockstitch.nn.slots.lifting import Hole, fill, lift
from lockstitch.nn.slots.module_changes import (
    keeps_nothing_else,
    places_of_others,
    versions_of,
    written_since,
)
from lockstitch.nn.slots.nesting import mark_inside
from lockstitch.nn.slots.replicas import replicate_here
from lockstitch.nn.slots.zero_fill import ZeroFill

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from lockstitch.memory.waiting import WorkEstimate
    from lockstitch.nn.slots.base import OwnPass
    from lockstitch.nn.slots.module_changes import TableEntry

_QUIET_PASSES: Final = 8


class OwnPasses:
    """Runs the own passes of the slot called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._quiet = 0
        self._replica: nn.Module | None = None
        self._others: list[TableEntry] = []
        self._leaves: Sequence[torch.Tensor] = ()
        self._fills_unused = True
        self._is_transparent: bool | None = None

    def disturb(self) -> None:
        """Takes note that the slot was told of changes."""
        self._quiet = 0
        self._replica = self._is_transparent = None

    def are_transparent(self, module: nn.Module) -> bool:
        """Whether all that `module` keeps is in plain sight (`keeps_nothing_else`); looks at it
        once while nothing changes."""
        if self._is_transparent is None:
            self._is_transparent = keeps_nothing_else(module)
        return self._is_transparent

    def are_possible(self) -> bool:
        """Whether nothing has changed for some passes; counts one."""
        self._quiet += 1
        return self._quiet > _QUIET_PASSES

    def prepare(
        self, module: nn.Module, leaves: Sequence[torch.Tensor], *, fills_unused: bool
    ) -> None:
        """Prepares a pass with a replica of `module`, whose `leaves` want gradients."""
        if self._replica is None:
            self._replica = replicate_here(module, shares_leaves=True)
            self._others = places_of_others(self._replica.modules())
        self._leaves = leaves
        self._fills_unused = fills_unused

    def timed(
        self,
        estimate: WorkEstimate,
        state: int,
        number: int,
        note_draw: Callable[[], object] = bool,
    ) -> OwnPass:
        """A pass that `estimate` learns from. Where the caller's generator is not in `state` any
        more, since the caller's own part has drawn random numbers, it draws those of slot `number`,
        after `note_draw`."""

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Sequence[int]]:
            work = partial(self.run, args, kwargs)
            if generators.fingerprint() == state:
                return estimate.measure(work)  # type: ignore[no-any-return]
            note_draw()
            with generators.kept():
                generators.seed(generators.seed_for(state, number))
                return work()

        return run

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Sequence[int]]:
        """What the module returns, on the caller's graph, and the buffers that it changed. What it
        raises is raised as from the slot."""
        return contextvars.copy_context().run(self._run, args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Sequence[int]]:
        assert self._replica is not None
        mark_inside()
        before = versions_of(self._others) if self._others else ()
        try:
            output = self._replica(*args, **kwargs)
            if self._fills_unused:
                output = _with_zeros_for_unused(output, self._leaves)
            failure = None
        except BaseException as error:  # noqa: BLE001 - raised again, as from the slot
            failure = describe(error, self._name, crosses=False)
        if failure is not None:
            raise failure.error()
        return output, written_since(before, self._others)


def _with_zeros_for_unused(output: Any, leaves: Sequence[torch.Tensor]) -> Any:
    """`output`, so that whoever goes back through it reaches all leaves."""
    skeleton, outputs = (Hole(0), [output]) if type(output) is torch.Tensor else lift(output)
    wanting = [i for i, each in enumerate(outputs) if each.requires_grad]
    missing: dict[int, torch.Tensor] = {}
    for i in wanting:
        missing.update(_unreached(outputs[i], leaves))
    if not missing:
        return output
    touched = ZeroFill.apply(len(wanting), *[outputs[i] for i in wanting], *missing.values())  # type: ignore[no-untyped-call]
    for i, each in zip(wanting, touched, strict=True):
        outputs[i] = each
    return fill(skeleton, outputs)


def _unreached(output: torch.Tensor, leaves: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """The leaves that `output` does not depend on, by their `id`."""
    missing = {id(leaf): leaf for leaf in leaves}
    missing.pop(id(output), None)
    open_nodes = [output.grad_fn]
    seen = set(open_nodes)
    while open_nodes and missing:
        node = open_nodes.pop()
        if node is None:
            continue
        following = node.next_functions
        if not following:
            missing.pop(id(getattr(node, "variable", None)), None)
        for each, _ in following:
            if each not in seen:
                seen.add(each)
                open_nodes.append(each)
    return missing
