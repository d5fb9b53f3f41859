"""Programs that are smaller than one that fails."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tests.parity.training.program import Part, Program, Stepper
from tests.parity.training.settling import settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def smallest(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program with as little in it as can be for which `fails(program)` is true."""
    while True:
        for other in simpler(program):
            made = settled(other)
            if made != program and fails(made):
                program = made
                break
        else:
            return program


def simpler(program: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    for place in range(len(program.parts) if len(program.parts) > 1 else 0):
        yield _without(program, place)
    if program.steps > 1:
        yield replace(program, steps=program.steps - 1)
    yield from _with_less(program)
    for place in range(len(program.parts)):
        yield from _with_simpler_part(program, place)
    for number in range(len(program.steppers)):
        yield from _with_simpler_stepper(program, number)
    if len(program.steppers) > 1:
        yield replace(program, steppers=(), assigned=())


def _with_less(program: Program) -> Iterator[Program]:
    plain = Program(program.parts)
    for each in fields(Program):
        value, default = getattr(program, each.name), getattr(plain, each.name)
        if each.name in ("parts", "steppers", "seed", "steps") or value == default:
            continue
        yield replace(program, **{each.name: default})
        if isinstance(value, frozenset) or each.name in ("assigned", "changes"):
            for thing in value:
                left = type(value)(one for one in value if one != thing)
                yield replace(program, **{each.name: left})


def _with_simpler_part(program: Program, place: int) -> Iterator[Program]:
    part = program.parts[place]
    plain = Part(part.owner)
    made = [
        replace(part, **{each.name: getattr(plain, each.name)})
        for each in fields(Part)
        if getattr(part, each.name) != getattr(plain, each.name)
    ]
    made += [replace(part, quirks=part.quirks - {quirk}) for quirk in part.quirks]
    for each in made:
        parts = [*program.parts]
        parts[place] = each
        yield replace(program, parts=tuple(parts))


def _with_simpler_stepper(program: Program, number: int) -> Iterator[Program]:
    stepper = program.steppers[number]
    plain = Stepper(stepper.parts)
    changes: list[dict[str, Any]] = [
        {each.name: getattr(plain, each.name)}
        for each in fields(Stepper)
        if each.name not in ("groups", "group_options")
    ]
    changes.append({"groups": (), "group_options": (), "added_at": None})
    changes.append({"group_options": tuple([{}] * len(stepper.groups))})
    for change in changes:
        steppers = [*program.steppers]
        steppers[number] = replace(stepper, **change)
        yield replace(program, steppers=tuple(steppers))


def _without(program: Program, place: int) -> Program:
    """The program without a part."""

    def moved(places: Any) -> tuple[int, ...]:
        return tuple(each - (each > place) for each in places if each != place)

    def moved_one(other: int | None) -> int | None:
        return None if other in (None, place) else moved([other])[0]

    parts = [
        replace(part, shares=moved_one(part.shares), borrows=moved_one(part.borrows))
        for number, part in enumerate(program.parts)
        if number != place
    ]
    steppers = []
    for stepper in program.steppers:
        groups = tuple(moved(group) for group in stepper.groups)
        kept = [number for number, group in enumerate(groups) if group]
        if moved(stepper.parts):
            steppers.append(
                replace(
                    stepper,
                    parts=moved(stepper.parts),
                    groups=tuple(groups[number] for number in kept),
                    group_options=tuple(stepper.group_options[number] for number in kept),
                )
            )
    is_whole = len(steppers) == len(program.steppers) and all(
        len(one.groups) == len(other.groups)
        for one, other in zip(steppers, program.steppers, strict=True)
    )
    return replace(
        program,
        parts=tuple(parts),
        steppers=tuple(steppers),
        unused=frozenset(moved(program.unused)),
        frozen=frozenset((s, moved([p])[0]) for s, p in program.frozen if p != place),
        changes=tuple(
            replace(each, part=moved([each.part])[0])
            for each in program.changes
            if each.part != place
        ),
        assigned=program.assigned if is_whole else (),
    )
