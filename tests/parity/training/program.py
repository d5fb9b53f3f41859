"""What a random training program is: a value, of which each field says one thing that happens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.parity.training.choices import OPTIMIZERS, takes_sparse

OWNERS = ("trainer", "ps1", "ps2")
OTHER_OWNERS = ("trainer", "a", "b", "c")
"""Of the world in which a training goes on from a checkpoint."""

WAYS = ("method", "async", "remote", "module", "by another", "group", "recomputed", "slots")
"""How a part is called. Slots are for a part of the trainer's."""

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
    pipeline: tuple[str, int, frozenset[int]] | None = None
    """Schedule, number of micro-batches, and the stages that recompute."""
    penalty: str | None = None
    """"input" or "parameters": the loss has a gradient penalty with respect to these."""
    clip: tuple[Any, float] | None = None
    """What is clipped: "value", or the type of the norm; and to what."""
    clip_options: dict[str, Any] = field(default_factory=dict)
    clips_references: bool = False
    """Whether parameters are named for it, and not the optimizer."""
    clips_in_two: bool = False
    """Whether the norm is taken first, and gradients are clipped by it."""
    scaler: dict[str, Any] | None = None
    """Options of a scaler, if there is one."""
    spoilt: frozenset[int] = frozenset()
    """Steps whose loss is not finite."""
    abandoned: frozenset[int] = frozenset()
    """Steps that are tried before, in a context that is left."""
    frozen: frozenset[tuple[int, int]] = frozenset()
    """(step, part): from then on it wants gradients no more, or again."""
    assigned: tuple[Assignment, ...] = ()
    reload_at: int | None = None
    """After which step everything is made anew, from states."""
    reload_by: str = "states"
    """"states", "plain" (by way of a plain optimizer), "checkpoint", "new world"."""
    average: str | None = None
    """"swa", "ema" or "buffers"."""
    evaluation: str | None = None
    """How the model is looked at after each step, of `EVALUATIONS`."""
    is_compiled: bool = False
    """Whether the function that calls the parts is compiled."""
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
        meets = self.is_reused or any(part.shares is not None for part in self.parts)
        is_halved = any(part.way == "slots" for part in self.parts)
        is_summed = self.pipeline is not None and self.contexts[-1] > 0
        # Threads of one process share what autocast has cast.
        is_shared = self.pipeline is not None and self._casts
        meets |= self.pipeline is not None and any(part.kind == "tied" for part in self.parts)
        if not (meets or is_halved or is_summed or is_shared or self.penalty):
            return 0.0
        return 1e-5 if self.dtype == torch.float64 and not self._casts else 3e-2

    @property
    def _casts(self) -> bool:
        return self.autocast or any("casts" in part.quirks for part in self.parts)

    def is_sparse(self, stepper: Stepper) -> bool:
        """Whether it gets sparse gradients."""
        return any(self.parts[place].kind == "sparse table" for place in stepper.parts)

    def settled(self) -> Program:
        """The program without what does not go together, in one process or by design."""
        made = self
        has_tables = [part.kind == "sparse table" for part in self.parts]
        steppers = tuple([_settled(stepper, self) for stepper in self.optimized])
        made = replace(made, steppers=steppers)
        if self.pipeline is not None:
            # A pipeline runs its stages in order, with gradients that are added up by itself.
            made = replace(
                made, unused=frozenset(), is_reused=False, penalty=None, is_compiled=False
            )
            made = made.with_parts(way="method")
            # What is computed again draws from a generator that all stages share here; and before
            # that the next micro-batches have been counted.
            if any(part.kind in ("dropout", "counter", "norm") for part in made.parts):
                made = made.with_parts(without={"recomputes"})
        if made.penalty is not None:  # torch: neither goes twice through these
            made = made.with_parts(kind_not="sparse table", without={"backward hook"})
        if any(has_tables):
            made = replace(made, clip=None)  # torch clips no sparse gradients
        has_momentum = any(each.scheduler in ("CyclicLR", "OneCycleLR") for each in steppers)
        if any(has_tables) and has_momentum and made.reload_by in ("checkpoint", "new world"):
            made = replace(made, reload_by="states")  # a checkpoint holds no sparse buffers
        if any(stepper.is_hvd for stepper in made.steppers):
            # It takes its gradients out of one context, and knows no scaler there.
            made = replace(made, contexts=tuple([0] * self.passes), scaler=None)
        if made.scaler is None:
            made = replace(made, spoilt=frozenset())
        elif any(OPTIMIZERS[each.optimizer][1].get("fused") for each in made.steppers):
            # Of these torch does not say that none of their parameters has a gradient.
            made = replace(made, unused=frozenset(), frozen=frozenset())
            made = made.with_parts(without={"cuts sometimes"})
        if made._casts:  # one process casts what is shared once, and adds up in low precision
            made = replace(made, parts=tuple(replace(part, shares=None) for part in made.parts))
        sparse = {each for each, stepper in enumerate(made.steppers) if made.is_sparse(stepper)}
        kept = [each for each in made.assigned if each.stepper not in sparse or each.key == "lr"]
        made = replace(made, assigned=tuple(kept))
        return made

    def with_parts(
        self, way: str = "", kind_not: str = "", without: set[str] | frozenset[str] = frozenset()
    ) -> Program:
        """The same with other parts."""
        parts = [
            replace(
                part,
                way=way or part.way,
                kind="linear" if part.kind == kind_not else part.kind,
                quirks=part.quirks - without,
            )
            for part in self.parts
        ]
        return replace(self, parts=tuple(parts))


def _settled(stepper: Stepper, program: Program) -> Stepper:
    is_sparse = program.is_sparse(stepper)
    kind = OPTIMIZERS[stepper.optimizer]
    is_only_sparse = kind[0] is torch.optim.SparseAdam
    if is_only_sparse or (is_sparse and not takes_sparse(kind)):
        stepper = replace(stepper, optimizer=0)
    if isinstance(kind[1].get("lr"), torch.Tensor) and len(stepper.groups) > 1:
        # In torch all groups have the very same tensor, which is changed once for each of them.
        stepper = replace(stepper, optimizer=0)
    if kind[1].get("fused") and program.scaler is not None:
        stepper = replace(stepper, is_hooked=False)  # torch steps these whatever has been found
    if stepper.is_hvd and any(program.parts[each].owner != "trainer" for each in stepper.parts):
        stepper = replace(stepper, is_hvd=False)
    if is_sparse and stepper.group_options:  # torch: no weight decay there
        kept = [{k: v for k, v in each.items() if k == "lr"} for each in stepper.group_options]
        stepper = replace(stepper, group_options=tuple(kept))
    knows_later = program.scaler is None and kind[0] is not torch.optim.Adagrad
    if stepper.scheduler != "none" or len(stepper.groups) < 2 or not knows_later:
        stepper = replace(stepper, added_at=None)  # these know groups from the beginning only
    return stepper
