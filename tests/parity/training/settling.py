"""What of random training programs does not go together, in one process or by design, is left out.

Each rule takes one thing out of a program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from tests.parity.training.choices import OPTIMIZERS, takes_sparse
from tests.parity.training.program import IN_HALVES

if TYPE_CHECKING:
    from tests.parity.training.program import Part, Program, Stepper

_BY_FILES: Final = ("checkpoint", "async", "new world")


def settled(program: Program) -> Program:
    """The program without that."""
    for rule in _RULES:
        program = rule(program)
    return program


def _with_steppers(program: Program) -> Program:
    return replace(
        program, steppers=tuple([_stepper(stepper, program) for stepper in program.optimized])
    )


def _of_pipeline(program: Program) -> Program:
    """A pipeline runs its stages in order, with gradients that are added up by itself."""
    if program.pipeline is None:
        return program
    made = replace(program, unused=frozenset(), is_reused=False, penalty=None, compiled=None)
    made = replace(made, has_guest=False).with_parts(way="method", borrows=None)
    # What is computed again draws from a generator that all stages share here; and before that the
    # next micro-batches have been counted.
    if any(part.kind in ("dropout", "counter", "norm") for part in made.parts):
        made = made.with_parts(without={"recomputes"})
    return made


def _of_penalty(program: Program) -> Program:
    if program.penalty is None:
        return program
    # In torch nothing goes twice through these.
    made = program.with_parts(kind_not="sparse table", without={"backward hook", "compiled"})
    return replace(made, compiled=made.compiled and "eager")


def _of_guest(program: Program) -> Program:
    if len(set(program.contexts)) < 2 or program.penalty is not None:
        program = replace(program, has_guest=False)
    if not program.has_guest:
        return program
    ways = ("recomputed", *IN_HALVES)  # the guest runs all parts plainly
    parts = [
        replace(part, borrows=None, way="method" if part.way in ways else part.way)
        for part in program.parts
    ]
    return replace(program, parts=tuple(parts))


def _of_hooks(program: Program) -> Program:
    """They are on the trainer."""
    if any(stepper.is_hooked for stepper in program.steppers):
        return replace(program, other_steps=False)
    return program


def _of_changes(program: Program) -> Program:
    """Parameters in the place of others are tied no more, and have no hooks until the part is made
    anew in another world."""

    def has_ties(part: Part) -> bool:
        return part.kind == "tied" or "parameter hook" in part.quirks

    kept = [
        each
        for each in program.changes
        if each.how != "assigned" or not has_ties(program.parts[each.part])
    ]
    return replace(program, changes=tuple(kept))


def _of_zeroes(program: Program) -> Program:
    """Parameters with gradients of zeros are stepped in one process, too."""
    if program.unused or program.frozen or program.changes or program.cuts:
        return replace(program, zeroes=False)
    return program


def _of_early_saves(program: Program) -> Program:
    """Another world begins with the parts of now, and states with the groups that there were."""
    if any(stepper.added_at is not None for stepper in program.steppers):
        return replace(program, saves_early=False)
    if program.saves_early and program.reload_by == "new world":
        return replace(program, reload_by="checkpoint")
    return program


def _of_tables(program: Program) -> Program:
    """Torch clips no sparse gradients, and a checkpoint holds no sparse buffers."""
    if not any(part.kind == "sparse table" for part in program.parts):
        return program
    has_momentum = any(each.scheduler in ("CyclicLR", "OneCycleLR") for each in program.steppers)
    if has_momentum and program.reload_by in _BY_FILES:
        program = replace(program, reload_by="states")
    return replace(program, clip=None)


def _of_clipping(program: Program) -> Program:
    if program.clip is None or program.clip[0] == "value":
        return replace(program, clips_finite=False)
    return program


def _of_hvd(program: Program) -> Program:
    """It takes its gradients out of one context, and knows no scaler there."""
    if any(stepper.is_hvd for stepper in program.steppers):
        return replace(program, contexts=tuple([0] * program.passes), scaler=None, has_guest=False)
    return program


def _of_scaler(program: Program) -> Program:
    if program.scaler is None:
        return program if program.clips_finite else replace(program, spoilt=frozenset())
    if not any(OPTIMIZERS[each.optimizer][1].get("fused") for each in program.steppers):
        return program
    # Of these torch does not say that none of their parameters has a gradient, and it steps them
    # whatever has been found.
    made = replace(program, unused=frozenset(), frozen=frozenset(), saves_early=False)
    made = replace(made, changes=tuple([e for e in made.changes if e.how != "assigned"]))
    return made.with_parts(without={"cuts sometimes"})


def _of_casts(program: Program) -> Program:
    """One process casts what is shared once, and adds up in low precision."""
    return program.with_parts(shares=None, borrows=None) if program.casts else program


def _of_assignments(program: Program) -> Program:
    sparse = {n for n, stepper in enumerate(program.steppers) if program.is_sparse(stepper)}
    kept = [each for each in program.assigned if each.stepper not in sparse or each.key == "lr"]
    return replace(program, assigned=tuple(kept))


_RULES: Final = (
    _with_steppers,
    _of_pipeline,
    _of_penalty,
    _of_guest,
    _of_hooks,
    _of_changes,
    _of_zeroes,
    _of_early_saves,
    _of_tables,
    _of_clipping,
    _of_hvd,
    _of_scaler,
    _of_casts,
    _of_assignments,
)


def _stepper(stepper: Stepper, program: Program) -> Stepper:
    is_sparse = program.is_sparse(stepper)
    kind = OPTIMIZERS[stepper.optimizer]
    is_only_sparse = kind[0] is torch.optim.SparseAdam
    if is_only_sparse or (is_sparse and not takes_sparse(kind)):
        stepper = replace(stepper, optimizer=0)
    if program.casts and kind[1].get("centered"):  # divides what was rounded by next to nothing
        stepper = replace(stepper, optimizer=0)
    if kind[1].get("fused") and program.scaler is not None:
        # Torch steps these whatever has been found, and makes states of what is new.
        stepper = replace(stepper, is_hooked=False, added_at=None)
    if stepper.is_hvd and any(program.parts[each].owner != "trainer" for each in stepper.parts):
        stepper = replace(stepper, is_hvd=False)
    if is_sparse and stepper.group_options:  # torch: no weight decay there
        kept = [{k: v for k, v in each.items() if k == "lr"} for each in stepper.group_options]
        stepper = replace(stepper, group_options=tuple(kept))
    knows_later = kind[0] is not torch.optim.Adagrad
    if stepper.scheduler != "none" or len(stepper.groups) < 2 or not knows_later:
        stepper = replace(stepper, added_at=None)  # these know groups from the beginning only
    return stepper
