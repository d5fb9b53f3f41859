"""Skip connections: what a stage makes and a distant one uses, without passing those between.

A stage returns `RRef(tensor)` among its outputs; the stages between hand it on; the one that wants
the value calls `to_here()`. Where a value leaves its stage, a reference to a tensor of that worker
is replaced by a `SkipReference`, which is but a name: the tensor stays in the stage's stash, is
fetched from there, and its gradient goes back there, from worker to worker in both directions.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from lockstitch.nn.parallel.containers import unpack_container
from lockstitch.rpc import RRef

if TYPE_CHECKING:
    from collections.abc import Callable


class SkipReference:
    """Stands for a tensor of an earlier stage, as an `RRef` does: `to_here()` gives the value."""

    __slots__ = ("_take", "micro_batch", "number", "stage", "wants_gradient")

    def __init__(
        self,
        stage: int,
        micro_batch: int,
        number: int,
        wants_gradient: bool,
        take: Callable[[SkipReference], torch.Tensor] | None = None,
    ) -> None:
        self.stage = stage
        self.micro_batch = micro_batch
        self.number = number
        self.wants_gradient = wants_gradient
        self._take = take

    def __repr__(self) -> str:
        return (
            f"<SkipReference · tensor {self.number} of stage {self.stage}, "
            f"micro-batch {self.micro_batch}>"
        )

    def _name(self) -> tuple[int, int, int]:
        return self.stage, self.micro_batch, self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkipReference) and self._name() == other._name()

    def __hash__(self) -> int:
        return hash(self._name())

    def __reduce__(self) -> tuple[Any, ...]:
        return SkipReference, (*self._name(), self.wants_gradient)

    def bound(self, take: Callable[[SkipReference], torch.Tensor]) -> SkipReference:
        """The same, for a module that may want the value."""
        return SkipReference(*self._name(), self.wants_gradient, take)

    def unbound(self) -> SkipReference:
        """The same, to be handed on."""
        return SkipReference(*self._name(), self.wants_gradient)

    def to_here(self, timeout: float = 0.0) -> torch.Tensor:
        """The tensor, fetched from its stage the first time. Raises `RuntimeError` where the
        forward pass of a stage is over. `timeout` is there for likeness: a fetch ends with the
        step."""
        del timeout
        if self._take is None:
            raise RuntimeError(f"{self!r} can be fetched within the forward pass of a stage only")
        return self._take(self)


class Stash:
    """The tensors of one stage that later ones may fetch, and who has fetched them. Filled by the
    stage's own thread, read by those that serve other workers."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, int], torch.Tensor] = {}
        self._borrowers: dict[tuple[int, int], set[int]] = {}
        self._lock = threading.Lock()

    def put(self, micro_batch: int, number: int, tensor: torch.Tensor) -> None:
        """Keeps a tensor."""
        with self._lock:
            self._tensors[micro_batch, number] = tensor
            self._borrowers[micro_batch, number] = set()

    def lend(self, skip: SkipReference, borrower: int) -> torch.Tensor:
        """The tensor of that name, for the stage `borrower`."""
        key = skip.micro_batch, skip.number
        with self._lock:
            if skip.wants_gradient:
                self._borrowers[key].add(borrower)
            return self._tensors[key]

    def clear(self, micro_batch: int) -> list[tuple[int, int]]:
        """Forgets the tensors of a micro-batch; returns which of them were lent to which stages,
        and so bring gradients: numbers in ascending order, and of each the last stage first."""
        with self._lock:
            keys = sorted(key for key in self._tensors if key[0] == micro_batch)
            for key in keys:
                del self._tensors[key]
            return [
                (key[1], stage)
                for key in keys
                for stage in sorted(self._borrowers.pop(key), reverse=True)
            ]

    def __bool__(self) -> bool:
        return bool(self._tensors)


def leave(value: Any, stash: Callable[[torch.Tensor], SkipReference]) -> Any:
    """What a stage returns, as it goes to the next: references to tensors of this worker are
    replaced by what `stash` makes of the tensors."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, SkipReference):
            return leaf.unbound()
        if isinstance(leaf, RRef) and leaf.is_owner():
            tensor = leaf.local_value()
            if isinstance(tensor, torch.Tensor):
                return stash(tensor)
        return leaf

    return _change_leaves(value, change)


def enter(value: Any, bind: Callable[[SkipReference], SkipReference]) -> Any:
    """What came from the stage before, as the module gets it: with references that can fetch."""
    return _change_leaves(
        value, lambda leaf: bind(leaf) if isinstance(leaf, SkipReference) else leaf
    )


def _change_leaves(thing: Any, change: Callable[[Any], Any]) -> Any:
    changed = change(thing)
    if changed is not thing or isinstance(thing, torch.Tensor):
        return changed
    unpacked = unpack_container(thing)
    if unpacked is None:
        return thing
    children = [_change_leaves(child, change) for child in unpacked.children]
    if all(new is old for new, old in zip(children, unpacked.children, strict=True)):
        return thing
    return unpacked.rebuild(children)
