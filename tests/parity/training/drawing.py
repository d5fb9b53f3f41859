"""Random training programs: which of their fields say what, by chance."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.parity.training.choices import OPTIMIZERS, SCHEDULERS
from tests.parity.training.parts import CHANGES, CHANGING, KINDS, QUIRKS
from tests.parity.training.program import (
    EVALUATIONS,
    IN_HALVES,
    OWNERS,
    WAYS,
    Assignment,
    Change,
    Part,
    Program,
    Stepper,
)
from tests.parity.training.settling import settled


def drawn(seed: int) -> Program:
    """The program of a seed."""
    source = random.Random(seed)
    count = source.randint(1, 5)
    parts: list[Part] = []
    while len(parts) < count:
        parts.append(_part(source, parts))
    steps = source.choice((3, 5, 5, 6))

    def maybe(chance: float, value: Any, otherwise: Any = None) -> Any:
        return value if source.random() < chance else otherwise

    def some_steps(chance: float) -> frozenset[int]:
        return frozenset(step for step in range(steps) if source.random() < chance)

    steppers = _steppers(source, parts, steps)
    scale = source.choice((2.0**10, 7.0))
    if any(OPTIMIZERS[each.optimizer][1].get("fused") for each in steppers):
        scale = 2.0**10  # torch's fused optimizers divide by it, the others multiply by its inverse
    kinds = ("value", 1.0, 2.0, 3.0, float("inf"), 0.0)
    program = Program(
        parts=tuple(parts),
        steppers=steppers,
        steps=steps,
        seed=seed,
        is_single=maybe(0.1, True, False),
        unused=frozenset(place for place in range(1, count) if source.random() < 0.15),
        is_reused=maybe(0.15, True, False),
        contexts=source.choice(((0,), (0,), (0, 0), (0, 1), (0, 0, 1), (0, 1, 2))),
        pipeline=maybe(0.15, _pipeline(source, parts)),
        has_guest=maybe(0.4, True, False),
        other_steps=maybe(0.2, True, False),
        zeroes=maybe(0.2, True, False),
        penalty=maybe(0.2, source.choice(("input", "parameters", "graph"))),
        clip=maybe(0.5, (source.choice(kinds), source.choice((0.05, 0.5, 1e4)))),
        clip_options=source.choice(({}, {}, {"foreach": False}, {"foreach": True})),
        clips_references=maybe(0.3, True, False),
        clips_in_two=maybe(0.3, True, False),
        clips_finite=maybe(0.4, True, False),
        scaler=maybe(0.4, {"init_scale": scale, "growth_interval": 2}),
        spoilt=some_steps(0.2),
        abandoned=maybe(0.3, some_steps(0.3), frozenset()),
        frozen=maybe(0.3, _frozen(source, steps, count), frozenset()),
        assigned=maybe(0.4, _assigned(source, steps, steppers), ()),
        changes=maybe(0.3, _changes(source, steps, count), ()),
        reload_at=maybe(0.5, source.randrange(steps - 1)),
        reload_by=source.choice(("states", "plain", "checkpoint", "async", "new world")),
        saves_early=maybe(0.3, True, False),
        average=maybe(0.3, source.choice(("swa", "ema", "buffers"))),
        updates_bn=maybe(0.5, True, False),
        evaluation=maybe(0.3, source.choice(EVALUATIONS)),
        compiled=maybe(0.04, source.choice(("eager", "aot_eager"))),
        autocast=maybe(0.1, True, False),
    )
    return settled(program)


def _part(source: random.Random, before: list[Part]) -> Part:
    owner = source.choice(OWNERS)
    ways = [each for each in WAYS if owner == "trainer" or each not in IN_HALVES]
    quirks = frozenset(source.sample(QUIRKS, source.choice((0, 0, 0, 1, 2))))
    if source.random() < 0.8:  # which takes long
        quirks -= {"compiled"}
    part = Part(owner, source.choice(KINDS), source.choice(ways), quirks)
    if part.way in IN_HALVES:  # where a replica runs, statistics and events are those of one half
        part = replace(part, kind=source.choice(("linear", "table", "tied")), quirks=frozenset())
    if part.way == "recomputed" and part.kind in CHANGING:
        part = replace(part, kind="linear")
    if part.way == "recomputed":  # how often it is called is not said
        part = replace(part, quirks=part.quirks - {"forward hooks", "cuts sometimes"})
    mine = [
        place
        for place, other in enumerate(before)
        if other.owner == owner and other.kind != "small" and other.shares is None
    ]
    if mine and part.kind != "small" and source.random() < 0.25:
        part = replace(part, shares=source.choice(mine))
    others = [place for place, other in enumerate(before) if other.kind != "small"]
    if others and source.random() < 0.1:
        part = replace(part, borrows=source.choice(others))
    return part


def _steppers(source: random.Random, parts: list[Part], steps: int) -> tuple[Stepper, ...]:
    places = [*range(len(parts))]
    cuts: list[list[int]] = [places]
    if len(parts) > 1 and source.random() < 0.3:
        source.shuffle(places)
        cut = source.randint(1, len(parts) - 1)
        cuts = [sorted(places[:cut]), sorted(places[cut:])]
    return tuple([_stepper(source, own, steps) for own in cuts])


def _stepper(source: random.Random, own: list[int], steps: int) -> Stepper:
    stepper = Stepper(
        tuple(own),
        source.randrange(len(OPTIMIZERS)),
        source.choice(("none",) * 4 + (*SCHEDULERS,)),
        is_named=source.random() < 0.2,
        is_hvd=source.random() < 0.4,
        is_hooked=source.random() < 0.2,
    )
    if source.random() < 0.6:
        return stepper
    count = source.randint(0, min(2, len(own) - 1))
    cuts = sorted(source.sample(range(1, len(own)), count)) if count else []
    order = source.sample(own, len(own))
    ends = zip([0, *cuts], [*cuts, len(own)], strict=True)
    groups = tuple([tuple(order[begin:end]) for begin, end in ends])
    options = {"lr": 0.02, "weight_decay": 0.1}
    kept = [{k: v for k, v in options.items() if source.random() < 0.4} for _ in groups]
    stepper = replace(stepper, groups=groups, group_options=tuple(kept))
    if count and source.random() < 0.5:  # schedulers know groups from the beginning only
        stepper = replace(stepper, added_at=source.randrange(steps - 1), scheduler="none")
    return stepper


def _pipeline(source: random.Random, parts: list[Part]) -> tuple[str, int, frozenset[int]]:
    name = source.choice(("1f1b", "gpipe", "zero_bubble", "interleaved"))
    owners = [part.owner for part in parts]
    distinct = list(dict.fromkeys(owners))
    rounds = len(owners) // len(distinct)
    if name == "interleaved" and owners != distinct * rounds:
        name = "1f1b"
    chunks = len(parts) + (0 if name == "interleaved" else source.randint(0, 2))
    recomputed = [place for place in range(len(parts)) if source.random() < 0.2]
    return name, chunks, frozenset(recomputed)


def _frozen(source: random.Random, steps: int, count: int) -> frozenset[tuple[int, int]]:
    pairs = [(step, part) for step in range(steps) for part in range(count)]
    return frozenset(source.sample(pairs, min(len(pairs), source.randint(1, 3))))


def _changes(source: random.Random, steps: int, count: int) -> tuple[Change, ...]:
    return tuple(
        Change(source.randrange(1, steps), source.randrange(count), source.choice(CHANGES))
        for _ in range(source.randint(1, 2))
    )


def _assigned(
    source: random.Random, steps: int, steppers: tuple[Stepper, ...]
) -> tuple[Assignment, ...]:
    made = []
    for _ in range(source.randint(1, 3)):
        number = source.randrange(len(steppers))
        groups = max(1, len(steppers[number].groups))
        key = source.choice(("lr", "lr", "weight_decay", "maximize", "note"))
        made.append(
            Assignment(
                source.randrange(steps),
                number,
                source.randrange(groups),
                key,
                source.choice((0.5, 2.0)),
            )
        )
    return tuple(made)
