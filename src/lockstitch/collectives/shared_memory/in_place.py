"""Large tensors that live in the arenas, reduced where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstitch.collectives.arithmetic import outputs_of, result_scale
from lockstitch.collectives.copying import copy
from lockstitch.collectives.outcomes import value_of
from lockstitch.collectives.shared_memory.operations import NOWHERE, Operation, stage
from lockstitch.memory.arena import ArenaFullError
from lockstitch.torch_internals.tensors import version_of

if TYPE_CHECKING:
    import torch

    from lockstitch.collectives.handles import Handle
    from lockstitch.collectives.shared_memory.definitions import Definition
    from lockstitch.collectives.shared_memory.operations import OperationContext, Part


class InPlace(Operation):
    """An allreduce in which at least one rank's tensor lives in its arena."""

    def __init__(self, handle: Handle[Any], definition: Definition) -> None:
        super().__init__(handle, definition)
        self._own_place = NOWHERE
        """The place that this rank's tensor is copied to, if it does not live in the arena."""
        self._is_staged = False
        self._blocks_done = 0
        self._begun: tuple[list[torch.Tensor], int, int] | None = None
        """The block that is being reduced: its tensors, how many changes (a sum with each other
        tensor, and scaling) the first has had, and its version with the last of them. An interrupt
        may come when torch has made a change and nobody has noted it; the version tells."""
        self._results: list[torch.Tensor] = []

    @property
    def _own(self) -> Part:
        own = self.parts[self.position]
        assert own is not None
        return own

    def step(self, context: OperationContext) -> bool:
        if not self._own.produced:
            if not self._is_placed(context):
                return False
            self._reduce_slice(context)
            context.tell_progress(self, 1)
        for part in self.present:  # no generator: this is called for every piece of news
            if not part.produced:
                return False
        self._results = outputs_of(self.request)
        if not self._own.is_resident:
            views = self.definition.views(context.segment, self._own.whole_place)
            for out, view in zip(self._results, views, strict=True):
                copy(out, view)
        return True

    def _is_placed(self, context: OperationContext) -> bool:
        """Whether all tensors are in the arenas; sees to this rank's own."""
        if self._own.whole_place == NOWHERE:
            try:
                if self._own_place == NOWHERE:
                    self._own_place = context.take(self, self.definition.layout.size)
            except ArenaFullError:  # until others are done with something
                return False
            if not self._is_staged:
                stage(self.request, self.definition.views(context.segment, self._own_place))
            self._is_staged = True  # others write there as soon as they are told
            context.tell_place(self, self._own_place)
        for part in self.present:  # noqa: SIM110 - as above
            if part.whole_place == NOWHERE:
                return False
        return True

    def owes(self, part: Part) -> bool:
        return not part.produced

    def result(self) -> object:
        return value_of(self.request, self._results)

    def _reduce_slice(self, context: OperationContext) -> None:
        assert self.request.reduction is not None
        combine_two = self.definition.fold
        scale = result_scale(self.request.reduction, len(self.parts))
        places = tuple(part.whole_place for part in self.present)
        index = [part.rank for part in self.present].index(context.rank)
        blocks = self.definition.blocks(context.segment, places, index)
        while self._blocks_done < len(blocks):
            if self._begun is None:
                block = blocks[self._blocks_done]
                self._begun = block, 0, version_of(block[0])
            block, made, version = self._begun
            first = block[0]
            for number in range(made, len(block)):
                if version_of(first) != version:  # it was made, and an interrupt came at once
                    pass
                elif number + 1 < len(block):
                    combine_two(first, block[number + 1], out=first)
                else:
                    scale.apply_(first)
                version = version_of(first)
                self._begun = block, number + 1, version
            for other in block[1:]:
                copy(other, first)
            # Without a call in between, so that no interrupt can separate them.
            self._begun = None
            self._blocks_done += 1
