"""How far the components of a worker's graph are in one backward pass: what has arrived for each,
what it has to report.

The pass guards them by its lock.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from lockstitch.autograd.decisions import may_block
from lockstitch.autograd.graph import join
from lockstitch.autograd.narrowing import narrowed
from lockstitch.autograd.termination import cancel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lockstitch.autograd.conductor import Task
    from lockstitch.autograd.discovery import Parts
    from lockstitch.autograd.graph import Component, Entry, Gradients
    from lockstitch.autograd.selection import Selection
    from lockstitch.ids import GlobalId
    from lockstitch.torch_internals.autograd import Node
    from lockstitch.wire.messages import Gradient


class Phase(enum.Enum):
    """A component runs at most once in a pass."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    DONE = enum.auto()


class Progress:
    """`arrived` holds gradients until the run takes them; `settled`, which all components of a pass
    share, names all that ever came."""

    __slots__ = (
        "arrived",
        "component",
        "consumed",
        "emitted",
        "has_roots",
        "phase",
        "settled",
        "task",
        "unwanted",
        "waits_for",
    )

    def __init__(self, component: Component, settled: set[GlobalId | None]) -> None:
        self.component = component
        self.has_roots = component.entries[0].message is None
        self.phase = Phase.WAITING
        self.arrived: dict[GlobalId | None, Gradients | None] = {}
        self.settled = settled
        self.emitted: list[GlobalId] = []
        self.consumed: list[GlobalId] = []
        self.task: Task | None = None
        self.waits_for: Entry | None = None
        self.unwanted: tuple[Node, ...] = ()
        """Receives that lead to nothing that a pass that selects has chosen."""

    def narrow(self, selection: Selection, wanted: Parts | None) -> None:
        """From now on only what leads to something chosen counts; see `narrowing`."""
        before = self.component
        self.component = narrowed(before, selection, wanted)
        kept = set(self.component.receives)
        self.unwanted = tuple([node for node in before.receives if node not in kept])

    def absorb(self, others: Sequence[Progress]) -> None:
        """Joins components to this one that nothing has come for yet."""
        self.component = join([self.component, *[each.component for each in others]])
        for other in others:
            self.has_roots = self.has_roots or other.has_roots
            self.unwanted += other.unwanted
            other.phase = Phase.DONE

    @property
    def has_begun(self) -> bool:
        """Whether anything has come for it."""
        return bool(self.arrived) or self.phase is not Phase.WAITING

    @property
    def is_busy(self) -> bool:
        """Whether it runs, and does not itself wait for a gradient."""
        if self.phase is not Phase.RUNNING:
            return False
        return self.waits_for is None or self.waits_for.message in self.settled

    def settle_roots(self, gradients: Gradients) -> None:
        """The loss's own gradients are there from the start."""
        self.settled.add(None)
        self.arrived[None] = gradients

    def settle(self, message: Gradient) -> None:
        """Notes gradients or a null token, and the report that came along."""
        stitch = message.message
        self.settled.add(stitch)
        self.arrived[stitch] = tuple(message.body.items) or None  # type: ignore[arg-type]
        self.emitted.extend(message.emitted)
        self.consumed.extend(message.consumed)
        self.consumed.append(stitch)

    def awaited(self, parts: Parts | None) -> list[tuple[Entry, list[int]]]:
        """The entries that a run beginning now must wait for, and which of their tensors: those
        that take part by `parts`, or all while that is not known."""
        awaited = []
        for entry in self.component.entries:
            if entry.message is None or entry.message in self.settled:
                continue
            indices = list(range(len(entry.edges)))
            if parts is not None:
                taking_part = parts.get(entry.message, frozenset())
                indices = [index for index in indices if index in taking_part]
            if indices:
                awaited.append((entry, indices))
        return awaited

    def take_report(self) -> tuple[tuple[GlobalId, ...], tuple[GlobalId, ...]]:
        """Returns what was emitted and consumed here, or told by gradients that came, since last
        asked."""
        emitted, self.emitted = self.emitted, []
        consumed, self.consumed = self.consumed, []
        return cancel(emitted, consumed)

    def missing(self) -> list[GlobalId]:
        """The stitches that it waits for, if it has begun to wait."""
        if self.phase is Phase.DONE or not self.has_begun:
            return []
        return [
            entry.message
            for entry in self.component.entries
            if entry.message is not None and entry.message not in self.settled
        ]


class Components:
    """All components that a worker's graph has in one pass; found by the stitch of an entry, or by
    None for the loss's roots."""

    def __init__(self, found: Iterable[Component], settled: set[GlobalId | None]) -> None:
        self._of: dict[GlobalId | None, Progress] = {}
        for component in found:
            progress = Progress(component, settled)
            for entry in component.entries:
                self._of[entry.message] = progress

    def __iter__(self) -> Iterator[Progress]:
        return iter(dict.fromkeys(self._of.values()))

    def get(self, message: GlobalId | None) -> Progress | None:
        """The component that the entry belongs to; None where nothing was sent by that name."""
        return self._of.get(message)

    def narrow(self, selection: Selection, wanted: Parts | None) -> None:
        """See `Progress.narrow`."""
        for progress in self:
            progress.narrow(selection, wanted)

    def join_to(self, progress: Progress, parts: Parts | None, fast: bool) -> None:
        """Joins to a component that is about to wait inside what will have to do so, too, as far as
        that is known. One thread then goes through all of it, which waits for one gradient after
        the other, where each component would need a thread that is woken up for its own."""
        others = [
            other
            for other in self
            if other.phase is Phase.WAITING
            and not other.has_begun
            and other is not progress
            and may_block(other.component, parts, fast)
        ]
        if others:
            progress.absorb(others)
            for entry in progress.component.entries:
                self._of[entry.message] = progress
