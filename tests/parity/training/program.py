"""What a random training program is: a value, of which each field says one thing that happens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

OWNERS = ("trainer", "ps1", "ps2")
OTHER_OWNERS = ("trainer", "a", "b", "c")
"""Of the world in which a training goes on from a checkpoint."""

WAYS = (
    *("method", "async", "remote", "module", "by another", "group", "mapped", "stream"),
    *("recomputed", "slots", "forks"),
)
"""How a part is called. Slots and forks are for a part of the trainer's."""

IN_HALVES = ("slots", "forks")

EVALUATIONS = ("no_grad", "inference_mode", "carried")


@dataclass(frozen=True)
class Part:
    """A part of the model: `Layer(…, kind, quirks)` on a worker, called in one of the `WAYS`."""

    owner: str = "ps1"
    kind: str = "linear"
    way: str = "method"
    quirks: frozenset[str] = frozenset()
    shares: int | None = None
    """An earlier part of the same worker whose weight it has, too."""
    borrows: int | None = None
    """A part of any worker with whose weight, which is fetched, the output is multiplied."""


@dataclass(frozen=True)
class Stepper:
    """An optimizer over some parts, and its scheduler."""

    parts: tuple[int, ...]
    optimizer: int = 0
    """A place in `OPTIMIZERS`."""
    scheduler: str = "none"
    groups: tuple[tuple[int, ...], ...] = ()
    """The parts of each group; empty: one group, not given as a dict."""
    group_options: tuple[dict[str, Any], ...] = ()
    added_at: int | None = None
    """After which step the last group is added."""
    is_named: bool = False
    """Whether names of parameters are given."""
    is_hvd: bool = False
    """Whether it is one of `hvd`, over parts of the trainer."""
    is_hooked: bool = False
    """Whether hooks count its steps, and change a learning rate before each."""


@dataclass(frozen=True)
class Assignment:
    """After a step somebody sets an option of a group."""

    step: int
    stepper: int
    group: int
    key: str
    factor: float


@dataclass(frozen=True)
class Change:
    """Before a step the weights of a part are changed, in one of the ways of `parts.CHANGES`."""

    step: int
    part: int
    how: str


@dataclass(frozen=True)
class Program:
    """A training."""

    parts: tuple[Part, ...]
    steppers: tuple[Stepper, ...] = ()
    """None: one over all parts."""
    steps: int = 5
    seed: int = 0
    is_single: bool = False
    """Whether numbers are of float32."""
    unused: frozenset[int] = frozenset()
    """Parts that take no part in every other step."""
    is_reused: bool = False
    """Whether the first part stands at the end, too."""
    contexts: tuple[int, ...] = (0,)
    """For each backward pass of a step its context, in ascending order."""
    has_guest: bool = False
    """Whether another worker trains, too: all contexts but the first are its own."""
    other_steps: bool = False
    """Whether it is the other worker that steps the optimizers."""
    zeroes: bool = False
    """Whether gradients are set to zero before a step, and not to None."""
    pipeline: tuple[str, int, frozenset[int]] | None = None
    """Schedule, number of micro-batches, and the stages that recompute."""
    penalty: str | None = None
    """"input" or "parameters": the loss has a gradient penalty with respect to these; "graph": it
    has none, but a graph is made of the backward pass."""
    clip: tuple[Any, float] | None = None
    """What is clipped: "value", or the type of the norm; and to what."""
    clip_options: dict[str, Any] = field(default_factory=dict)
    clips_references: bool = False
    """Whether parameters are named for it, and not the optimizer."""
    clips_in_two: bool = False
    """Whether the norm is taken first, and gradients are clipped by it."""
    clips_finite: bool = False
    """Whether a norm that is not finite is an error, after which there is no step."""
    scaler: dict[str, Any] | None = None
    """Options of a scaler, if there is one."""
    spoilt: frozenset[int] = frozenset()
    """Steps in one pass of which the loss is not finite."""
    abandoned: frozenset[int] = frozenset()
    """Steps that are tried before, in a context that is left."""
    frozen: frozenset[tuple[int, int]] = frozenset()
    """(step, part): from then on it wants gradients no more, or again."""
    assigned: tuple[Assignment, ...] = ()
    changes: tuple[Change, ...] = ()
    reload_at: int | None = None
    """After which step everything is made anew, from states."""
    reload_by: str = "states"
    """"states", "plain" (by way of a plain optimizer), "checkpoint", "async", "new world"."""
    saves_early: bool = False
    """Whether states are those that were saved after the first pass of the step."""
    average: str | None = None
    """"swa", "ema" or "buffers"."""
    updates_bn: bool = False
    """Whether averages see some data in the end, for their batch statistics."""
    evaluation: str | None = None
    """How the model is looked at after each step, of `EVALUATIONS`."""
    compiled: str | None = None
    """By which backend the function that calls the parts is compiled."""
    autocast: bool = False

    @property
    def optimized(self) -> tuple[Stepper, ...]:
        return self.steppers or (Stepper(tuple(range(len(self.parts)))),)

    @property
    def passes(self) -> int:
        return len(self.contexts)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.is_single or self.autocast else torch.float64

    @property
    def order(self) -> list[int]:
        return [*range(len(self.parts)), *([0] if self.is_reused else [])]

    @property
    def tolerance(self) -> float:
        """0 where all numbers must be the same to the last bit.

        Where several gradients of a parameter meet, one process adds up those of a pass first, and
        what is added to what comes first differs here, as it does for micro-batches of several
        contexts; and a batch in two halves rounds otherwise. Optimizers that divide by what is
        nearly nothing make much of it.
        """
        meets = self.is_reused or any(
            part.shares is not None or part.borrows is not None for part in self.parts
        )
        is_halved = any(part.way in IN_HALVES for part in self.parts)
        is_summed = self.pipeline is not None and self.contexts[-1] > 0
        # Threads of one process share what autocast has cast, until one of them leaves it.
        has_tied = any(part.kind == "tied" for part in self.parts)
        is_shared = self.casts and (has_tied or self.pipeline is not None)
        meets |= self.pipeline is not None and has_tied
        if not (meets or is_halved or is_summed or is_shared or self.penalty):
            return 0.0
        return 1e-5 if self.dtype == torch.float64 and not self.casts else 3e-2

    @property
    def casts(self) -> bool:
        """Whether numbers of low precision are computed with."""
        return self.autocast or any("casts" in part.quirks for part in self.parts)

    def is_sparse(self, stepper: Stepper) -> bool:
        """Whether it gets sparse gradients."""
        return any(self.parts[place].kind == "sparse table" for place in stepper.parts)

    @property
    def cuts(self) -> bool:
        """Whether a part gives no gradients sometimes."""
        return any("cuts sometimes" in part.quirks for part in self.parts)

    def with_parts(
        self,
        kind_not: str = "",
        without: set[str] | frozenset[str] = frozenset(),
        **changes: Any,
    ) -> Program:
        """The same with other parts."""
        parts = [
            replace(
                part,
                kind="linear" if part.kind == kind_not else part.kind,
                quirks=part.quirks - without,
                **changes,
            )
            for part in self.parts
        ]
        return replace(self, parts=tuple(parts))
